"""A small training run through a stream, end to end, with R-EWC."""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.losses import NewClassesBCE


def shorten(benchmark: Any, stream: str, samples: int) -> list[Any]:
    """The experiences of a stream with at most so many samples each, spread over its classes."""
    short = []
    for experience in benchmark.streams[stream]:
        step = max(1, len(experience.dataset) // samples)
        experience.dataset = experience.dataset.subset(list(range(0, len(experience.dataset), step)))
        short.append(experience)
    return short


def learn(
    model: nn.Module,
    train: Sequence[Any],
    test: Sequence[Any],
    *,
    parameters: Any = None,
    lr: float = 1e-3,
    epochs: int = 1,
    batch_size: int = 32,
    samples_per_class: int | None = 10,
    **options: Any,
) -> tuple[list[float], list[float]]:
    """Train on one experience after the other; accuracies on each test experience after the first and at the end."""
    strategy = REWC(
        model=model,
        optimizer=torch.optim.Adam(parameters or model.parameters(), lr=lr),
        criterion=NewClassesBCE(),
        ewc_lambda=100.0,
        samples_per_class=samples_per_class,
        seed=0,
        train_mb_size=batch_size,
        train_epochs=epochs,
        eval_mb_size=100,
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True), loggers=[]),
        **options,
    )
    history = []
    for experience in train:
        strategy.train(experience)
        results = strategy.eval(test)
        keys = sorted(key for key in results if key.startswith("Top1_Acc_Exp"))
        history.append([results[key] for key in keys])
    return history[0], history[-1]
