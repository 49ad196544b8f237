"""Whole experiments on data of MNIST's size and shape: Avalanche's way to it, `TensorBatches`, and plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_rewc import REWCPlugin
from avalanche_rewc.models import LeNet
from avalanche_rewc.streams.batches import TensorBatches
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.split import Source, split
from benchmarks.speed.timing import interleaved

BATCH, EVALUATED = 100, 500
SPLIT: dict[str, Any] = {
    "n_experiences": 2,
    "seed": None,
    "class_order": None,
    "validation": 0.0,
    "validation_seed": 0,
    "task_labels": False,
}


def pictures(count: int) -> TensorClassificationDataset:
    """Random ones take as long as real ones, and need no download."""
    generator = torch.Generator().manual_seed(count)
    return TensorClassificationDataset(torch.rand(count, 1, 32, 32, generator=generator), torch.arange(count) % 10)


def with_avalanche(benchmark: Any, epochs: int, plugins: Callable[[], list[Any]]) -> None:
    """So many epochs of each experience, and an evaluation of the test stream after each."""
    torch.manual_seed(0)
    model = LeNet(10)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=epochs,
        eval_mb_size=EVALUATED,
        plugins=plugins(),
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True)),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)


def with_torch(train: TensorClassificationDataset, test: TensorClassificationDataset, epochs: int) -> None:
    """The same in the shortest loop there is."""
    torch.manual_seed(0)
    model = LeNet(10)
    for head in (m for m in model.modules() if hasattr(m, "active_units")):
        head.active_units.fill_(1)  # type: ignore[operator]
    optimizer = torch.optim.Adam(model.parameters())
    loss = nn.CrossEntropyLoss()
    for first in (0, 5):
        own = (train.targets >= first) & (train.targets < first + 5)
        x, y = train.inputs[own], train.targets[own]
        orders = (torch.randperm(len(x)) for _ in range(epochs))
        for chosen in (batch for order in orders for batch in order.split(BATCH)):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        with torch.no_grad():
            parts = zip(test.inputs.split(EVALUATED), test.targets.split(EVALUATED), strict=True)  # type: ignore[no-untyped-call]
            float(sum((model(batch).argmax(1) == labels).sum() for batch, labels in parts))


def experiments(train: int, test: int, epochs: int) -> dict[str, Callable[[], None]]:
    """All of them, by name."""
    sets = pictures(train), pictures(test)
    benchmark = split(Source("MNIST", *sets, [str(c) for c in range(10)]), **SPLIT)
    return {
        "torch": lambda: with_torch(*sets, epochs),
        "naive": lambda: with_avalanche(benchmark, epochs, list),
        "naive, TensorBatches": lambda: with_avalanche(benchmark, epochs, lambda: [TensorBatches()]),
        "rewc, TensorBatches": lambda: with_avalanche(benchmark, epochs, lambda: [REWCPlugin(seed=0), TensorBatches()]),
    }


def measure(rounds: int, train: int, test: int, epochs: int) -> dict[str, Any]:
    """Seconds of an experiment, by round."""
    interleaved(experiments(train // 10, test // 10, 1), 0, at_least=1)  # whoever comes first pays for it
    seconds = interleaved(experiments(train, test, epochs), 0, at_least=rounds, warm_up=0)
    return {"train": train, "test": test, "epochs": epochs, "seconds": seconds}
