"""Small streams and models for tests of the plug-in."""

from __future__ import annotations

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from torch import nn


class Tensors(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.targets = x, [int(label) for label in y]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.targets[index]


def blobs(classes=6, per_class=20, shape=(5,), dtype=torch.float64, seed=0):
    """A Gaussian cloud per class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, *shape, generator=generator, dtype=dtype)
    y = torch.arange(classes).repeat_interleave(per_class)
    x = centres[y] + 0.3 * torch.randn(len(y), *shape, generator=generator, dtype=dtype)
    order = torch.randperm(len(y), generator=generator)
    return Tensors(x[order], y[order])


def blob_stream(experiences=3, classes=6, task_labels=False, **kwargs):
    return nc_benchmark(
        blobs(classes, seed=0, **kwargs),
        blobs(classes, **{**kwargs, "per_class": 5, "seed": 0}),
        n_experiences=experiences,
        task_labels=task_labels,
        fixed_class_order=list(range(classes)),
    )


class Growing(nn.Module):
    """Conv and Linear layers with a head that grows; as large as a test needs."""

    def __init__(self, inputs=5, hidden=8, first=2, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv1d(1, 3, 3, padding=1)
            self.norm = nn.BatchNorm1d(3)
            self.body = nn.Sequential(nn.Linear(3 * inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
            self.head = IncrementalClassifier(hidden, initial_out_features=first)

    def forward(self, x):
        return self.head(self.body(torch.relu_(self.norm(self.conv(x.flatten(1).unsqueeze(1)))).flatten(1)))


class MultiHead(MultiTaskModule):
    def __init__(self, inputs=5, hidden=8, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU())
            self.heads = MultiHeadClassifier(hidden)

    def forward(self, x, task_labels):
        return self.heads(self.body(x), task_labels)


def quiet():
    return EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])


def settings(model, optimizer=None, **kwargs):
    """Keyword arguments of a strategy for a quick and silent run."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    defaults = {"criterion": nn.CrossEntropyLoss(), "train_mb_size": 8, "train_epochs": 2, "eval_mb_size": 64}
    return {"model": model, "optimizer": optimizer, "evaluator": quiet(), **defaults, **kwargs}


def accuracies(strategy, stream):
    return [value for key, value in strategy.eval(stream).items() if key.startswith("Top1_Acc_Exp")]
