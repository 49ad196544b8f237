"""Times on a noisy machine: candidates take turns in one run, and only their ratios are compared."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
_clock = CLOCKS["wall"]


def use_clock(name: str) -> None:
    """Of all later measurements. The processor's time of one thread means something on a busy machine, too."""
    global _clock
    _clock = CLOCKS[name]


def now() -> float:
    """Seconds on the clock in use."""
    return _clock()


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    seconds: float,
    *,
    at_least: int = 5,
    at_most: int = 60,
    warm_up: int = 2,
) -> dict[str, list[float]]:
    """Seconds of every candidate, by round. In every round each has one turn, in an order of its own.

    Who comes after whom is drawn anew: a turn also pays for what the one before it left in the caches.

    Args:
        seconds: rounds are made until so many have passed.
        at_least, at_most: rounds, whatever they take; at_least wins.
    """
    names, order = list(candidates), random.Random(0)
    for _ in range(warm_up):
        for name in names:
            candidates[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    begin = now()
    for turn in range(max(at_least, at_most)):
        if turn >= at_least and now() - begin > seconds:
            break
        for name in order.sample(names, len(names)):
            start = now()
            candidates[name]()
            taken[name].append(now() - start)
    return taken
