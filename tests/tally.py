"""Counts of what the random tests tried, for a table of faults injected and losses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "REWC_FAULT_REPORT"
SOAK = os.environ.get("REWC_SOAK") == "1"
"""The longer, random form of these tests."""


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
    """Count within; the counts are written to the folder named by REWC_FAULT_REPORT, if it is set.

    `lost` is 1 if the test failed: a property-based test stops at the first loss it finds.
    """
    counts, lost = Tally(), 1
    try:
        yield counts
        lost = 0
    finally:
        if folder := os.environ.get(VARIABLE):
            path = Path(folder) / f"{what.replace(' ', '-').replace('/', '-')}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"what": what, "tried": counts.tried, "lost": lost, **counts.details}) + "\n")
