"""The method is worth something: real digits, 5 + 5 classes, single head, no task labels, no old data."""

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.models import IncrementalClassifier
from avalanche.training import Naive
from sklearn.datasets import load_digits
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.losses import NewClassesBCE
from tests.toy import Tensors, accuracies, settings

LAMBDAS = (100.0, 1e3, 1e4, 1e5)
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def stream():
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    data = Tensors(x[train], y[train]), Tensors(x[test], y[test])
    return nc_benchmark(*data, n_experiences=2, task_labels=False, fixed_class_order=list(range(10)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = IncrementalClassifier(64, initial_out_features=5)

    def forward(self, x):
        return self.head(self.body(x))


def run(stream, make, **options):
    """Accuracy on both tasks after the second, mean over the seeds."""
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        arguments = settings(model, optimizer, criterion=NewClassesBCE(), train_mb_size=32, train_epochs=8)
        strategy = make(**arguments, **options)
        for experience in stream.train_stream:
            strategy.train(experience)
        found.append(torch.tensor(accuracies(strategy, stream.test_stream)))
    return torch.stack(found).mean(0)


def best(stream, **options):
    """At the best λ of one small grid, by average accuracy."""
    found = [run(stream, REWC, ewc_lambda=ewc_lambda, **options) for ewc_lambda in LAMBDAS]
    return max(found, key=lambda accuracy: float(accuracy.mean()))


def test_rewc_keeps_more_than_fine_tuning_and_than_diagonal_ewc(stream):
    naive = run(stream, Naive)
    diagonal = best(stream, layers="none")
    rotated = best(stream)
    assert rotated[0] > naive[0] + 0.1
    assert rotated.mean() > naive.mean() + 0.1
    assert rotated.mean() > diagonal.mean() + 0.05
