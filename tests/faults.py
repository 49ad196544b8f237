"""Counts of faults injected and of what was lost, for a table; and how many random ones to try."""

import json
import os
from pathlib import Path


def trials(usual, soak):
    """How many random trials: `make soak` asks for many."""
    return soak if os.environ.get("REWC_SOAK") else usual


def report(what, tried, lost=0):
    """Write a count into the folder REWC_FAULT_REPORT, if there is one; then fail if something was lost."""
    folder = os.environ.get("REWC_FAULT_REPORT")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = "".join(letter if letter.isalnum() else "-" for letter in what)
        record = {"what": what, "tried": tried, "lost": lost}
        (Path(folder) / f"{name}.json").write_text(json.dumps(record) + "\n")
    assert lost == 0, f"{what}: {lost} of {tried} lost something"
