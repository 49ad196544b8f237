"""How much longer one thing takes than another, and how sure that is.

What disturbs a round disturbs all who take their turn in it, so a ratio is taken within each round: the median of
those is given, with the interval that holds the true median with 95 %, whatever its distribution: from the k-th
smallest to the k-th largest round, by the sign test. With fewer than six rounds it is all of them, and less sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Literal

DOUBT = 0.05
Verdict = Literal["no", "undecided", "yes"]


@dataclass(frozen=True)
class Ratio:
    """A median with its interval; without one, if what was compared did not take turns, both ends are the median."""

    median: float
    low: float
    high: float

    @classmethod
    def single(cls, value: float) -> Ratio:
        """A number of which no spread is known."""
        return cls(value, value, value)

    def __str__(self) -> str:
        return f"{self.median:.2f}" if self.low == self.high else f"{self.median:.2f} ({self.interval})"

    @property
    def interval(self) -> str:
        """From and to."""
        return f"{self.low:.2f}–{self.high:.2f}"

    def times(self, factor: float) -> Ratio:
        """The same in other units."""
        return Ratio(self.median * factor, self.low * factor, self.high * factor)

    def at_most(self, limit: float) -> Verdict:
        """Undecided if the limit lies within the interval."""
        return "yes" if self.high <= limit else "no" if self.low > limit else "undecided"

    def at_least(self, limit: float) -> Verdict:
        """Undecided if the limit lies within the interval."""
        return "yes" if self.low >= limit else "no" if self.high < limit else "undecided"


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Of times by round; if one of them was timed once only, of medians."""
    if len(over) != len(under):
        return Ratio.single(median(over) / median(under))
    values = sorted(a / b for a, b in zip(over, under, strict=True))
    skipped = max(0, _outside(len(values)) - 1)
    return Ratio(median(values), values[skipped], values[-1 - skipped])


def _outside(count: int) -> int:
    """The largest k for which at least k of so many rounds lie on either side of the median, but for `DOUBT`."""
    k, tail = 0, 0.0
    while (tail := tail + comb(count, k) / 2**count) <= DOUBT / 2:
        k += 1
    return k
