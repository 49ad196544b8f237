"""How times grow: with experiences, layer width, samples and classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.core.bases import eigenvectors
from avalanche_rewc.models import FeatureMLP
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.networks import NETWORKS, Network
from benchmarks.speed.steps import LAMBDA, experiences_of, in_training, step_of, strategy_of
from benchmarks.speed.timing import interleaved, now

SAMPLES = (100, 200, 400, 800, 1600)
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


def consolidations(
    networks: dict[str, tuple[Network, int, Any]],
    seconds: float,
    rounds: int,
    others: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Seconds by round of consolidations, by name: a network, samples, a kind of Fisher; and of others beside them."""
    candidates: dict[str, Callable[[], object]] = dict(others or {})
    for name, (network, samples, fisher) in networks.items():
        torch.manual_seed(0)
        model = network.make().eval()
        x, y = network.samples(samples)
        candidates[name] = lambda m=model, x=x, y=y, f=fisher: estimate(m, x, y, torch.Generator().manual_seed(0), f)  # type: ignore[misc]
    return interleaved(candidates, seconds, at_least=rounds, at_most=30, warm_up=1)


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

    Each twice: two that are the same differ, too, by where their tensors happen to lie.
    """
    network = NETWORKS[name]
    stream = experiences_of(network, experiences + 1)

    def step_after(learned: int) -> Callable[[], None]:
        strategy = strategy_of(REWC, network, ewc_lambda=LAMBDA, samples_per_class=1, fisher="sampled")
        return step_of(in_training(strategy, stream[: learned + 1]))

    learned = {"early": 1, "early again": 1, "late": experiences, "late again": experiences}
    candidates = {when: step_after(count) for when, count in learned.items()}
    return interleaved(candidates, 0, at_least=rounds)


def measure(seconds: float, widths: tuple[int, ...], experiences: int, rounds: int, steps: int) -> dict[str, Any]:
    """Everything, in seconds.

    Args:
        seconds: to spend on consolidations of a kind.
        rounds: of consolidations, at least.
        steps: rounds of steps.
    """
    by_width: dict[str, dict[str, float]] = {}
    for width in widths:
        factor = torch.rand(width, width)
        factor = (factor @ factor.T).unsqueeze(0)
        whole = median(consolidations({"whole": (mlp(width), 200, "sampled")}, seconds / 4, 3)["whole"])
        alone = interleaved({"eigh": lambda f=factor: eigenvectors(f)}, seconds / 4, at_least=2, warm_up=1)["eigh"]  # type: ignore[misc]
        by_width[str(width)] = {"consolidation": whole, "four eigendecompositions": 4 * median(alone)}
    samples = {str(n): (NETWORKS["lenet"], n, "sampled") for n in SAMPLES}
    classes: dict[str, tuple[Network, int, Any]] = {str(c): (mlp(256, c), 200, "exact") for c in (10, 50, 200)}
    classes["200, certain"] = mlp(256, 200, certain=True), 200, "exact"
    return {
        "experiences": over_experiences(experiences),
        "steps": {name: early_and_late(name, experiences, steps) for name in ("lenet", "mlp-32")},
        "widths": by_width,
        "samples": consolidations(samples, 2 * seconds, rounds),
        "classes": consolidations(classes, seconds, rounds, {"one pass": one_pass(mlp(256, 200), 200)}),
    }
