"""The lines that must be reached, computed from the results: ratios of times, each on its worst case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.networks import NETWORKS

EPOCH = 300
"""Steps of 100 samples in an epoch of one of two MNIST experiences."""


@dataclass(frozen=True)
class Bar:
    """One line: what must be, what is, on the worst network or thread count."""

    what: str
    must: str
    reached: float
    where: str
    holds: bool


def bars(measured: dict[str, Any]) -> Iterator[Bar]:
    """All lines for which there are results."""
    found = {key: entry["found"] for key, entry in measured.items()}
    yield from _steps({key: value for key, value in found.items() if key.startswith("steps@")})
    yield from _consolidation(found)
    yield from _growth(found)
    if "memory@1" in found:
        peaks = found["memory@1"]["vgg16"]["GiB"]
        peak = max(peaks.values())
        where = f"GiB, {max(map(int, peaks))} samples"
        yield Bar("consolidation of VGG-16 at 224 px, above the model", "≤ 2 GiB", peak, where, peak <= 2)
        stored = found["memory@1"]["stored"]["lenet"]["rewc last"]
        yield Bar(
            "bytes stored after the last experience / after the first",
            "1",
            stored[-1] / stored[0],
            "LeNet",
            stored[-1] == stored[0],
        )


def _worst(what: str, limit: float, cases: dict[str, float], *, at_least: bool = False) -> Iterator[Bar]:
    if cases:
        name, value = (min if at_least else max)(cases.items(), key=lambda case: case[1])
        holds = value >= limit if at_least else value <= limit
        yield Bar(what, f"{'≥' if at_least else '≤'} {limit:g} ×", value, name, holds)


def _steps(found: dict[str, Any]) -> Iterator[Bar]:
    def ratios(over: str, under: str, only: tuple[str, ...] = tuple(NETWORKS)) -> dict[str, float]:
        return {
            f"{NETWORKS[name].title}, {_threads(key)}": times[over] / times[under]
            for key, by_network in found.items()
            for name, times in by_network.items()
            if name in only and over in times and under in times
        }

    for name in NETWORKS:
        yield from _worst(
            f"step / Avalanche's online EWC: {NETWORKS[name].title}", 1.1, ratios("rewc", "ewc online", (name,))
        )
    for tasks in (1, 5, 20):
        yield from _worst(
            f"step / Avalanche's separate EWC after {tasks}", 1.0, ratios("rewc", f"ewc separate after {tasks}")
        )
    for name in ("vgg16", "resnet18"):
        yield from _worst(f"step / Naive: {NETWORKS[name].title}", 1.15, ratios("rewc", "naive", (name,)))
    yield from _worst(
        "the paper's two-layer form / step: VGG-16", 1.25, ratios("paper", "rewc", ("vgg16",)), at_least=True
    )
    yield from _worst("step in experience 51 / in experience 2", 1.05, ratios("rewc after 50", "rewc"))


def _consolidation(found: dict[str, Any]) -> Iterator[Bar]:
    results = {key: value for key, value in found.items() if key.startswith("consolidation@")}

    def ratios(name: str, rivals: list[str] | None = None) -> dict[str, float]:
        return {
            f"{rival}, {_threads(key)}": ms / by_network[name]["ms"]["consolidate"]
            for key, by_network in results.items()
            if name in by_network
            for rival, ms in by_network[name]["ms"].items()
            if (
                rival in rivals
                if rivals
                else rival not in ("avalanche", "consolidate", "consolidate-exact", "loop-exact")
            )
        }

    yield from _worst("one sample at a time / consolidation: MLP", 10, ratios("mlp-128", ["loop"]), at_least=True)
    yield from _worst("one sample at a time / consolidation: LeNet", 4, ratios("lenet", ["loop"]), at_least=True)
    for name in ("lenet", "mlp-128", "resnet18", "vit"):
        yield from _worst(f"the fastest rival / consolidation: {NETWORKS[name].title}", 1, ratios(name), at_least=True)
    cases = {}
    for key, by_network in results.items():
        steps = found.get(f"steps@{key.split('@')[1]}")
        if steps and "lenet" in by_network and "lenet" in steps:
            for fisher in ("consolidate", "consolidate-exact"):
                whole = by_network["lenet"]["ms"][fisher] * 200 / 1e3
                cases[f"{fisher}, {_threads(key)}"] = whole / (EPOCH * steps["lenet"]["naive"])
    yield from _worst("200 samples / an epoch of 30 000 on MNIST: LeNet", 0.1, cases)


def _growth(found: dict[str, Any]) -> Iterator[Bar]:
    if "growth@1" not in found:
        return
    growth = found["growth@1"]
    widths = {int(width): times["consolidation"] for width, times in growth["widths"].items()}
    last, before = sorted(widths)[-1], sorted(widths)[-2]
    factor = last / before
    yield from _worst(
        f"width {before} to {last}, against the cube", 1.0, {"MLP": widths[last] / widths[before] / factor**3}
    )
    samples = growth["samples"]
    yield from _worst("samples 400 to 800, against linear", 1.0, {"LeNet": samples["800"] / samples["400"] / 2})
    bases = growth["widths"]["256"]["four eigendecompositions"]
    one, many = (growth["classes"][of] - bases for of in ("sampled", "200"))
    yield from _worst(
        "exact Fisher of 200 classes / 200 × the sampled one, bases apart", 1.0, {"MLP 256": many / 200 / one}
    )


def _threads(key: str) -> str:
    count = key.split("@")[1]
    return f"{count} thread{'' if count == '1' else 's'}"
