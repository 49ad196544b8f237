"""How times grow: with experiences, layer width, samples and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from avalanche.training import Naive
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.core import FisherKind, Memory
from avalanche_rewc.core.bases import eigenvectors
from avalanche_rewc.core.reflections import DEFAULT_RANK
from avalanche_rewc.models import FeatureMLP
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.networks import NETWORKS, Network
from benchmarks.speed.steps import LAMBDA, experiences_of, in_training, step_of, strategy_of
from benchmarks.speed.timing import interleaved, now

SAMPLES = (100, 200, 400, 800, 1600)
EXACT_SAMPLES = (200, 1000)
"""With the exact Fisher. The second is what the defaults take of a task of disjoint MNIST, 200 of each class."""
CERTAIN = 100.0
"""Times the logits of a random network: the most probable of 200 classes has nearly 0.9 then, as in a trained one."""


def mlp(width: int, classes: int = 10, *, certain: bool = False) -> Network:
    """Two hidden layers, all of a width. One that is certain gives few classes a probability, as if it were trained."""

    def make() -> FeatureMLP:
        model = FeatureMLP(width, (width, width), initial_out_features=classes)
        if certain:
            *_, head = (module for module in model.modules() if isinstance(module, nn.Linear))
            with torch.no_grad():
                head.weight.mul_(CERTAIN)
        return model

    return Network(f"MLP {width}", make, (width,), classes, batch_size=32)


def one_pass(network: Network, samples: int) -> Callable[[], object]:
    """The gradient of one class's log-probability, all samples at once, summed: what the exact Fisher needs of each."""
    torch.manual_seed(0)
    model = network.make().eval()
    x, _ = network.samples(samples)
    score = model(x).log_softmax(-1)[:, 0].sum()
    return lambda: torch.autograd.grad(score, list(model.parameters()), retain_graph=True)


def consolidation_of(network: Network, samples: int, fisher: FisherKind) -> Callable[[], Memory]:
    """What `REWC` does after an experience."""
    torch.manual_seed(0)
    model = network.make().eval()
    x, y = network.samples(samples)
    return lambda: estimate(model, x, y, torch.Generator().manual_seed(0), fisher)


def over_widths(widths: tuple[int, ...], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by round of consolidations of 200 samples, and of the eigendecompositions in them alone, by width."""
    candidates: dict[str, Callable[[], object]] = {}
    for width in widths:
        whole = consolidation_of(mlp(width), 200, "sampled")
        factors = [factor for pair in whole().factors.values() for factor in pair]
        candidates[f"{width}, consolidation"] = whole
        candidates[f"{width}, eigenvectors"] = lambda factors=factors: [eigenvectors(f, DEFAULT_RANK) for f in factors]  # type: ignore[misc]
    found = interleaved(candidates, 0, at_least=rounds, warm_up=1)
    kinds = ("consolidation", "eigenvectors")
    return {str(width): {kind: found[f"{width}, {kind}"] for kind in kinds} for width in widths}


def over_samples(rounds: int) -> dict[str, list[float]]:
    """Seconds by round of LeNet's consolidations, and of a training step beside them."""
    network = NETWORKS["lenet"]
    candidates: dict[str, Callable[[], object]] = {
        str(samples): consolidation_of(network, samples, "sampled") for samples in SAMPLES
    }
    for samples in EXACT_SAMPLES:
        candidates[f"{samples}, exact"] = consolidation_of(network, samples, "exact")
    candidates["a step"] = step_of(in_training(strategy_of(Naive, network), experiences_of(network, 1)))
    return interleaved(candidates, 0, at_least=rounds, warm_up=1)


def over_classes(rounds: int) -> dict[str, list[float]]:
    """Seconds by round of the exact Fisher, bases and all, and of a plain backward pass beside it."""
    candidates: dict[str, Callable[[], object]] = {"one pass": one_pass(mlp(256, 200), 200)}
    for classes in (10, 50, 200):
        candidates[str(classes)] = consolidation_of(mlp(256, classes), 200, "exact")
    candidates["200, certain"] = consolidation_of(mlp(256, 200, certain=True), 200, "exact")
    return interleaved(candidates, 0, at_least=rounds, warm_up=1)


def over_experiences(count: int) -> list[float]:
    """Seconds that each of many experiences took, consolidation and all, in `last` mode."""
    network = NETWORKS["lenet"]
    strategy: SupervisedTemplate = strategy_of(REWC, network, ewc_lambda=LAMBDA, samples_per_class=5)
    seconds = []
    for experience in experiences_of(network, count):
        start = now()
        strategy.train(experience)
        seconds.append(now() - start)
    return seconds


def early_and_late(name: str, experiences: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step after one experience and after many, by round, with nothing else between them.

    Those after one twice: two that are the same may differ, too, by where their tensors happen to lie.
    """
    network = NETWORKS[name]
    stream = experiences_of(network, experiences + 1)

    def step_after(learned: int) -> Callable[[], None]:
        strategy = strategy_of(REWC, network, ewc_lambda=LAMBDA, samples_per_class=1, fisher="sampled")
        return step_of(in_training(strategy, stream[: learned + 1]))

    learned = {"early": 1, "early again": 1, "late": experiences}
    candidates = {when: step_after(count) for when, count in learned.items()}
    return interleaved(candidates, 0, at_least=rounds)


def measure(widths: tuple[int, ...], experiences: int, rounds: int, steps: int) -> dict[str, Any]:
    """Everything, in seconds.

    Args:
        rounds: of consolidations.
        steps: rounds of steps.
    """
    return {
        "experiences": over_experiences(experiences),
        "steps": {name: early_and_late(name, experiences, steps) for name in ("lenet", "mlp-32")},
        "widths": over_widths(widths, rounds),
        "samples": over_samples(rounds),
        "classes": over_classes(rounds),
    }
