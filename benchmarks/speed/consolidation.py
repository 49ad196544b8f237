"""Time of a consolidation: factors, bases and Fisher, against other ways to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core import FisherKind, Memory, consolidate
from avalanche_rewc.plugin import ESTIMATION_BATCH
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.rivals import RIVALS, Unsupported, available
from benchmarks.speed.timing import interleaved, now

SAMPLES = {"lenet": 200, "mlp-128": 800, "resnet18": 32, "vit": 32}
"""Samples of each network. The first two are what 40 of each class are in disjoint MNIST and in half of Stanford-40."""
SLOW = 15.0
"""What takes more seconds than this is timed once: eigenbases of patches of 512 channels take others minutes."""
ROTATED_EXACT = ("loop-exact", "nngeometry-exact", "curvlinops-exact")


def estimate(model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator, fisher: FisherKind) -> Memory:
    """The library's own, called as a rival is."""
    batches = list(zip(x.split(ESTIMATION_BATCH), y.split(ESTIMATION_BATCH), strict=True))  # type: ignore[no-untyped-call]
    return consolidate(model, lambda: [((b,), labels) for b, labels in batches], fisher=fisher, generator=generator)


def measure(name: str, seconds: float, count: int) -> dict[str, Any]:
    """Median milliseconds per sample of all that is installed and takes the network; why not, for the others."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    model = network.make().eval()
    x, y = network.samples(count)
    ways: dict[str, Callable[..., Any]] = {
        "consolidate": partial(estimate, fisher="sampled"),
        "consolidate-exact": partial(estimate, fisher="exact"),
    }
    few = name in ("lenet",)  # elsewhere one round of the exact rivals would take minutes
    ways |= {rival: RIVALS[rival].run for rival in available() if few or rival not in ROTATED_EXACT}
    candidates: dict[str, Callable[[], Any]] = {}
    slow: dict[str, float] = {}
    refused: dict[str, str] = {r: "not installed" for r in RIVALS if r not in available()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way, run in ways.items():
            once = partial(run, model, x, y)
            begin = now()
            try:
                once(torch.Generator().manual_seed(0))
            except Unsupported as reason:
                refused[way] = str(reason)
            except Exception as error:  # of a library's own, on a network that it does not say it cannot take
                refused[way] = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
            else:
                if now() - begin > SLOW:
                    slow[way] = now() - begin
                else:
                    candidates[way] = lambda once=once: once(torch.Generator().manual_seed(0))  # type: ignore[misc]
        times = slow | interleaved(candidates, seconds, at_least=3, at_most=20, warm_up=0)
    return {
        "samples": count,
        "ms": {way: 1e3 * times[way] / count for way in ways if way in times},
        "once": list(slow),
        "refused": refused,
    }
