"""Bytes that are stored, and that a consolidation takes beside the model."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from avalanche.training import EWC
from avalanche.training.plugins import EWCPlugin
from torch import Tensor
from tqdm import tqdm

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core import FisherKind, Memory
from avalanche_rewc.models import VGG16GlobalPool
from benchmarks.speed.consolidation import estimate
from benchmarks.speed.networks import NETWORKS, Network
from benchmarks.speed.steps import LAMBDA, experiences_of, strategy_of


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def stored(memories: Iterable[Memory]) -> int:
    """Bytes of everything remembered."""
    total = 0
    for memory in memories:
        total += size([*memory.importances.values(), *memory.anchors.values()])
        total += size(tensor for rotation in memory.rotations.values() for tensor in rotation.tensors())
        total += size(t for pair in memory.factors.values() for t in pair)
    return total


def over_experiences(name: str, count: int) -> dict[str, list[float]]:
    """Stored bytes after each experience in units of the model's: R-EWC, its diagonal form, Avalanche's EWC."""
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


AT_224 = {
    "vgg16-224": Network(
        "VGG-16 at 224 px",
        lambda: VGG16GlobalPool(None, initial_out_features=5),
        (3, 224, 224),
        classes=5,  # the exact Fisher sends one signal back for each, few at once: more take longer, not more memory
        batch_size=16,
    )
}


def peak_of(network: str, fisher: FisherKind, samples: int) -> dict[str, Any]:
    """GiB that a consolidation takes above what the process had with model and samples, and those of the model.

    In a process of its own, since a peak does not fall.
    """
    alone = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with alone:
        above, model = alone.submit(_above, network, fisher, samples, torch.get_num_threads()).result()
    return {"network": network, "fisher": fisher, "samples": samples, "GiB": above / 2**30, "model GiB": model / 2**30}


def _above(name: str, fisher: FisherKind, samples: int, threads: int) -> tuple[int, int]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = (NETWORKS | AT_224)[name]
    model = network.make().eval()
    x, y = network.samples(samples)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far, which imports made, is forgotten
    before = _peak()
    estimate(model, x, y, torch.Generator().manual_seed(0), fisher)
    return _peak() - before, size(model.parameters())


def _peak() -> int:
    """Bytes. Linux: of this program; `getrusage` begins with the peak of the process that started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(vgg16: Mapping[FisherKind, Sequence[int]], experiences: int) -> dict[str, Any]:
    """Peaks and stored bytes.

    Args:
        vgg16: samples of VGG-16 at 224 px, by the kind of Fisher.
    """
    cases: list[tuple[str, FisherKind, int]] = [("vgg16-224", f, n) for f, counts in vgg16.items() for n in counts]
    for name in ("lenet", "mlp-128"):
        cases += [(name, "sampled", 200), (name, "exact", 200)]
    return {
        "peaks": [peak_of(*case) for case in tqdm(cases, desc="memory")],
        "stored": {n: over_experiences(n, experiences) for n in ("lenet", "mlp-32")},
    }
