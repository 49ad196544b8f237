"""The lines that must be reached, computed from the results: ratios of times, each on its worst case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.parts import of_part, threads_of
from benchmarks.speed.ratio import Ratio, Verdict, ratio
from benchmarks.speed.rivals import RIVALS
from benchmarks.speed.steps import LEARNED

EPOCH = 300
"""Steps of 100 samples in an epoch of one of two MNIST experiences."""

NO_RIVALS = ("avalanche", "backpack")
"""In the bar of the fastest: they make no bases and no rotated diagonal."""
OF_PATCHES = ("nngeometry", "curvlinops")
"""They make whole bases of patches, which are larger than those of channels."""


@dataclass(frozen=True)
class Bar:
    """One line: what must be, what is, on the worst network or thread count."""

    what: str
    must: str
    reached: Ratio
    where: str
    holds: Verdict
    by_median: Verdict
    """What `holds` would be if the median were known exactly."""


def bars(measured: dict[str, Any]) -> Iterator[Bar]:
    """All lines for which there are results."""
    found = {key: entry["found"] for key, entry in measured.items()}
    yield from _steps({key: value for key, value in found.items() if key.startswith("steps")})
    yield from _consolidation(found)
    yield from _growth(of_part(measured, "growth"))
    for memory in of_part(measured, "memory").values():
        peaks = {
            f"{peak['fisher']}, {peak['samples']} sample{'' if peak['samples'] == 1 else 's'}": Ratio.single(
                peak["GiB"]
            )
            for peak in memory["peaks"]
            if peak["network"] == "vgg16-224"
        }
        yield from _worst("consolidation of VGG-16 at 224 px, above the model", 2, peaks, unit="GiB")
        stored = memory["stored"]["lenet"]["rewc last"]
        growth = {"LeNet": Ratio.single(stored[-1] / stored[0])}
        yield from _worst("bytes stored after the last experience / after the first", 1, growth)


def _worst(
    what: str, limit: float, cases: dict[str, Ratio], *, at_least: bool = False, unit: str = "×"
) -> Iterator[Bar]:
    """The case that decides: one that fails, else one that is undecided, and of these the furthest."""
    if cases:
        judged = {name: (case.at_least if at_least else case.at_most)(limit) for name, case in cases.items()}

        def badness(name: str) -> tuple[int, float]:
            by = ("yes", "undecided", "no").index(judged[name])
            return by, -cases[name].median if at_least else cases[name].median

        name = max(cases, key=badness)
        median = Ratio.single(cases[name].median)
        by_median = (median.at_least if at_least else median.at_most)(limit)
        yield Bar(what, f"{'≥' if at_least else '≤'} {limit:g} {unit}", cases[name], name, judged[name], by_median)


def _steps(found: dict[str, Any]) -> Iterator[Bar]:
    def ratios(over: str, under: str, only: tuple[str, ...] = tuple(NETWORKS)) -> dict[str, Ratio]:
        cases: dict[str, Ratio] = {}
        # Sorted, "steps-close" comes before "steps@": where both have a pair, that of many rounds stands.
        for key, by_network in sorted(found.items()):
            where = f"{threads_of(key)}{', memory kept' * key.startswith('steps-kept')}"
            for name, times in by_network.items():
                if name in only and over in times and under in times:
                    cases.setdefault(f"{NETWORKS[name].title}, {where}", ratio(times[over], times[under]))
        return cases

    for name in NETWORKS:
        yield from _worst(
            f"step / Avalanche's online EWC: {NETWORKS[name].title}", 1.1, ratios("rewc", "ewc online", (name,))
        )
    yield from _worst(
        'step with space="original" / Avalanche\'s online EWC', 1.1, ratios("rewc original", "ewc online")
    )
    for tasks in LEARNED:
        yield from _worst(
            f"step / Avalanche's separate EWC after {tasks}", 1.0, ratios("rewc", f"ewc separate after {tasks}")
        )
    for name in ("vgg16", "resnet18"):
        yield from _worst(f"step / Naive: {NETWORKS[name].title}", 1.15, ratios("rewc", "naive", (name,)))
    yield from _worst(
        "the paper's two-layer form / step: VGG-16", 1.25, ratios("paper", "rewc", ("vgg16",)), at_least=True
    )


def _consolidation(found: dict[str, Any]) -> Iterator[Bar]:
    results = {key: value for key, value in found.items() if key.startswith("consolidation@")}

    def ratios(name: str, only: tuple[str, ...] = tuple(RIVALS), ours: str = "consolidate") -> dict[str, Ratio]:
        """Of some rivals, over ourselves with the same kind of Fisher."""
        return {
            f"{rival}, {threads_of(key)}": ratio(seconds, by_network[name]["seconds"][ours])
            for key, by_network in results.items()
            if name in by_network and ours in by_network[name]["seconds"]
            for rival, seconds in by_network[name]["seconds"].items()
            if rival not in NO_RIVALS and rival.endswith("-exact") == ours.endswith("-exact") and rival in only
        }

    yield from _worst("one sample at a time / consolidation: MLP", 10, ratios("mlp-128", ("loop",)), at_least=True)
    yield from _worst("one sample at a time / consolidation: LeNet", 4, ratios("lenet", ("loop",)), at_least=True)
    for name in ("lenet", "mlp-128", "vgg16", "resnet18", "vit"):
        title = NETWORKS[name].title.split(",")[0]  # without the batch of a training step
        yield from _worst(f"the fastest rival / consolidation: {title}", 1, ratios(name), at_least=True)
        exact = ratios(name, ours="consolidate-exact")
        yield from _worst(f"the same, exact Fisher: {title}", 1, exact, at_least=True)
        for ours, bases in (("consolidate-patch", "patch bases"), ("consolidate-patch-whole", "whole patch bases")):
            patch = ratios(name, OF_PATCHES, ours=ours)
            yield from _worst(f"libraries of patch bases / we with {bases}: {title}", 1, patch, at_least=True)


def _growth(growth: dict[str, Any]) -> Iterator[Bar]:
    """By the number of threads."""
    if not growth:
        return
    late = {
        f"{NETWORKS[name].title}, {len(found['experiences'])} learned, {threads}": ratio(times["late"], times["early"])
        for threads, found in growth.items()
        for name, times in found["steps"].items()
    }
    yield from _worst("step after many experiences / after the first", 1.05, late)
    cubes = {}
    for threads, found in growth.items():
        before, last = sorted(found["widths"], key=int)[-2:]
        wider = ratio(found["widths"][last]["consolidation"], found["widths"][before]["consolidation"])
        cubes[f"MLP {before} to {last}, {threads}"] = wider.times((int(before) / int(last)) ** 3)
    yield from _worst("width, against the cube", 1.0, cubes)
    epochs = {
        f"LeNet, {fisher} Fisher, {threads}": ratio(found["samples"][samples], found["samples"]["a step"]).times(
            1 / EPOCH
        )
        for threads, found in growth.items()
        for samples, fisher in (("200", "sampled"), ("200, exact", "exact"))
    }
    yield from _worst("200 samples / an epoch of 30 000 on MNIST", 0.1, epochs)
    for few, many in (("400", "800"), ("800", "1600")):
        growing = {
            f"LeNet, {threads}": ratio(found["samples"][many], found["samples"][few]).times(int(few) / int(many))
            for threads, found in growth.items()
        }
        yield from _worst(f"samples {few} to {many}, against linear", 1.0, growing)
    for case, kind in (("200", "a random network"), ("200, certain", "one that is certain of its samples")):
        passes = {
            f"MLP 256, {threads}": ratio(found["classes"][case], found["classes"]["one pass"]).times(1 / 200)
            for threads, found in growth.items()
        }
        yield from _worst(f"exact Fisher of 200 classes, bases and all / 200 backward passes: {kind}", 1.0, passes)
