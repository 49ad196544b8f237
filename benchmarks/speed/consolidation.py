"""Time of a consolidation: factors, bases and Fisher, against other ways to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core import ConvBasis, FisherKind, Memory, consolidate
from avalanche_rewc.core.reflections import DEFAULT_RANK
from avalanche_rewc.plugin import ESTIMATION_BATCH
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.rivals import RIVALS, Unsupported, available
from benchmarks.speed.timing import interleaved, now

SAMPLES = {"lenet": 200, "mlp-128": 800, "vgg16": 16, "resnet18": 32, "vit": 64}
"""Samples of each network. The first two are what 40 of each class are in disjoint MNIST and in half of Stanford-40; of
the others as many as time allows for: the probe and the bases take the same time for any number of samples."""
BATCH_SIZES = (32, 256)
"""Rivals read in the better of these: the usual one of a training loop, and `consolidate`'s own."""
SLOW = 7.0
"""What takes more seconds than this is timed once: eigenbases of patches of 512 channels take others minutes."""
HOPELESS = 20.0
"""And so is what takes so many times as long as `consolidate`: a few percent more or less would not matter."""
ROTATED_EXACT = ("loop-exact", "nngeometry-exact", "curvlinops-exact")
LONG = {
    "vgg16": ("consolidate-patch", "consolidate-patch-whole", "curvlinops"),
    "resnet18": ("consolidate-exact", "consolidate-patch", "consolidate-patch-whole", "nngeometry", "curvlinops"),
    "vit": ("consolidate-exact",),
}
"""Many seconds each: with two threads only."""
NEVER = {"vgg16": ("consolidate-exact", "nngeometry")}
"""Minutes. (curvlinops computes the same as nngeometry.)"""
NO_CONVOLUTIONS = {"mlp-128": ("consolidate-patch", "consolidate-patch-whole")}


def estimate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator,
    fisher: FisherKind,
    rank: int | None = DEFAULT_RANK,
    conv_basis: ConvBasis = "channel",
) -> Memory:
    """The library's own, called as a rival is."""
    batches = list(zip(x.split(ESTIMATION_BATCH), y.split(ESTIMATION_BATCH), strict=True))  # type: ignore[no-untyped-call]
    return consolidate(
        model,
        lambda: [((b,), labels) for b, labels in batches],
        fisher=fisher,
        generator=generator,
        rank=rank,
        conv_basis=conv_basis,
    )


def measure(name: str, seconds: float, count: int, rounds: int) -> dict[str, Any]:
    """Seconds by round of all that is installed and takes the network; why not, for the others."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model = network.make().eval()
    x, y = network.samples(count)
    left_out = NEVER.get(name, ()) + NO_CONVOLUTIONS.get(name, ())
    left_out += LONG.get(name, ()) if torch.get_num_threads() == 1 else ()
    if name != "lenet":  # elsewhere one round of the exact rivals would take minutes
        left_out += ROTATED_EXACT
    ways: dict[str, Callable[..., Any]] = {
        "consolidate": partial(estimate, fisher="sampled"),
        "consolidate-whole": partial(estimate, fisher="sampled", rank=None),
        "consolidate-patch": partial(estimate, fisher="sampled", conv_basis="patch"),
        "consolidate-patch-whole": partial(estimate, fisher="sampled", rank=None, conv_basis="patch"),
        "consolidate-exact": partial(estimate, fisher="exact"),
    }
    ways |= {rival: RIVALS[rival].run for rival in available()}
    candidates: dict[str, Callable[[], Any]] = {}
    slow: dict[str, list[float]] = {}
    read: dict[str, int] = {}
    refused: dict[str, str] = {r: "not installed" for r in RIVALS if r not in available()}
    limit = SLOW
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way, run in ways.items():
            if way in left_out:
                continue
            sizes = _sizes(count) if way in RIVALS and RIVALS[way].in_batches else [None]
            try:
                once, taken, size = _best(partial(run, model, x, y), sizes)
            except Unsupported as reason:
                refused[way] = str(reason)
            except Exception as error:  # of a library's own, on a network that it does not say it cannot take
                refused[way] = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            else:
                if size is not None:
                    read[way] = size
                if way == "consolidate":
                    limit = min(SLOW, HOPELESS * taken)
                if taken > limit and way != "consolidate":
                    slow[way] = [taken]
                else:
                    candidates[way] = once
        times = slow | interleaved(candidates, seconds, at_least=rounds, at_most=30, warm_up=0)
    return {
        "samples": count,
        "seconds": {way: times[way] for way in ways if way in times},
        "batch": read,
        "refused": refused,
    }


def _sizes(count: int) -> list[int | None]:
    """Batch sizes that differ for so many samples."""
    return [*sorted({min(size, count) for size in BATCH_SIZES})]


def _best(run: Callable[..., Any], sizes: Sequence[int | None]) -> tuple[Callable[[], Any], float, int | None]:
    """The way in its better batch size, its seconds and that size.

    Two turns with each size, since in the first one libraries are imported; for what is slow, one with the first size.
    """
    tried: list[tuple[float, int, int | None]] = []
    for _ in range(2):
        for place, size in enumerate(sizes):
            begin = now()
            _turn(run, size)
            taken = now() - begin
            tried.append((taken, place, size))
            if taken > SLOW:
                return partial(_turn, run, size), taken, size
    taken, _, size = min(tried)
    return partial(_turn, run, size), taken, size


def _turn(run: Callable[..., Any], size: int | None) -> Any:
    options = {} if size is None else {"batch_size": size}
    return run(torch.Generator().manual_seed(0), **options)
