"""Bytes that are stored, and that a consolidation takes beside the model."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from avalanche.training import EWC
from avalanche.training.plugins import EWCPlugin
from torch import Tensor, nn

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core import Memory
from avalanche_rewc.models import VGG16GlobalPool
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.steps import LAMBDA, experiences_of, strategy_of


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def stored(memories: Iterable[Memory]) -> int:
    """Bytes of everything remembered."""
    total = 0
    for memory in memories:
        total += size([*memory.importances.values(), *memory.anchors.values()])
        total += size(t for r in memory.rotations.values() for t in (r.input_basis, r.output_basis))
        total += size(t for pair in memory.factors.values() for t in pair)
    return total


def over_experiences(name: str, count: int) -> dict[str, list[float]]:
    """Stored bytes after each experience in units of the model's, of R-EWC's modes and of Avalanche's EWC."""
    network = NETWORKS[name]
    experiences = experiences_of(network, count)
    rewc: dict[str, Any] = {"ewc_lambda": LAMBDA, "samples_per_class": 1, "fisher": "sampled"}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "rewc last": (REWC, rewc),
        "rewc none": (REWC, rewc | {"layers": "none"}),
        "ewc separate": (EWC, {"ewc_lambda": LAMBDA, "mode": "separate"}),
    }
    found: dict[str, list[float]] = {}
    for kind, (cls, options) in kinds.items():
        strategy = strategy_of(cls, network, **options)
        model = size(strategy.model.parameters())
        found[kind] = []
        for experience in experiences:
            strategy.train(experience)
            for plugin in strategy.plugins:
                if isinstance(plugin, REWCPlugin):
                    found[kind].append(stored(plugin.memories) / model)
                elif isinstance(plugin, EWCPlugin):
                    kept = [
                        d.data
                        for one in (plugin.saved_params, plugin.importances)
                        for v in one.values()
                        for d in v.values()
                    ]
                    found[kind].append(size(kept) / model)
    return found


def peaks(counts: Sequence[int], pixels: int) -> dict[str, Any]:
    """GiB above what the process had with model and samples, while VGG-16 is consolidated from more and more of them.

    Right only in a process that has needed no more before: a peak does not fall.
    """
    torch.manual_seed(0)
    model: nn.Module = VGG16GlobalPool(None, initial_out_features=40).eval()
    x, y = torch.randn(max(counts), 3, pixels, pixels), torch.arange(max(counts)) % 40
    before = _peak()
    found = {}
    for count in sorted(counts):
        estimate(model, x[:count], y[:count], torch.Generator().manual_seed(0), "sampled")
        found[str(count)] = (_peak() - before) / 2**30
    return {"pixels": pixels, "GiB": found, "model GiB": size(model.parameters()) / 2**30}


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(samples: Sequence[int], pixels: int, experiences: int) -> dict[str, Any]:
    """The peaks first, see `peaks`."""
    return {
        "vgg16": peaks(samples, pixels),
        "stored": {n: over_experiences(n, experiences) for n in ("lenet", "mlp-32")},
    }
