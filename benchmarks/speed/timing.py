"""Times on a noisy machine: candidates take turns in one run, and only ratios of their medians are compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Median seconds of every candidate. In every round each has one turn, and a different one begins."""
    names = list(candidates)
    for _ in range(warm_up):
        for name in names:
            candidates[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            candidates[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}
