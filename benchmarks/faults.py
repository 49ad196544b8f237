"""The table of faults injected by the tests, from the counts they leave in a folder.

REWC_FAULT_REPORT=runs/faults python -m pytest && python -m benchmarks.faults runs/faults docs/faults.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.cli import call
from benchmarks.names import UserError

HEAD = """# Faults injected

What the tests did to models, numbers, files and running experiments, and how often something was lost. These are the
counts of one run of the ordinary tests (`make faults`); `make soak` tries many times as much.

| what | tried | lost | of them |
| --- | ---: | ---: | --- |
"""


def table(folder: Path) -> str:
    """One line for each count, in the order of their names."""
    counts = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not counts:
        raise UserError(f"there are no counts in {folder}: run the tests with REWC_FAULT_REPORT={folder}")
    return HEAD + "".join(_row(**count) for count in counts)


def _row(what: str, tried: int, lost: int, **details: int) -> str:
    found = ", ".join(f"{name}: {value}" for name, value in details.items())
    return f"| {what} | {tried} | {lost} | {found} |\n"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2:
        raise UserError("say the folder of the counts and the file of the table: runs/faults docs/faults.md")
    Path(arguments[1]).write_text(table(Path(arguments[0])), encoding="utf-8")
    return 0


if __name__ == "__main__":
    call(main)
