"""Counts of what the tests with faults and random cases tried, for the table that `benchmarks.faults` makes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "REWC_FAULT_REPORT"
SOAK = os.environ.get("REWC_SOAK") == "1"
"""The longer, random form of these tests."""


def trials(usual: int, soak: int) -> int:
    """How many random trials: `make soak` asks for many."""
    return soak if SOAK else usual


class Tally:
    def __init__(self) -> None:
        self.tried = 0
        self.details: dict[str, int] = {}

    def add(self, detail: str | None = None, number: int = 1) -> None:
        self.tried += number
        if detail is not None:
            self.details[detail] = self.details.get(detail, 0) + number


@contextmanager
def tally(what: str) -> Iterator[Tally]:
    """Count within. `lost` is 1 if the test failed: a property-based test stops at the first loss it finds."""
    counts, lost = Tally(), 1
    try:
        yield counts
        lost = 0
    finally:
        _write(what, counts.tried, lost, counts.details)


def report(what: str, tried: int, lost: int = 0) -> None:
    """Count what was done elsewhere; fail if something was lost."""
    _write(what, tried, lost, {})
    assert lost == 0, f"{what}: {lost} of {tried} lost something"


def _write(what: str, tried: int, lost: int, details: dict[str, int]) -> None:
    if folder := os.environ.get(VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in what)
        record = {"what": what, "tried": tried, "lost": lost, **details}
        (Path(folder) / f"{name}.json").write_text(json.dumps(record) + "\n")
