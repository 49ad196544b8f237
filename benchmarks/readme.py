"""The README's numbers, made from the result files that are kept in `benchmarks/results`.

python -m benchmarks.readme            # write them
python -m benchmarks.readme --check    # only say whether they are up to date
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.cli import call
from benchmarks.findings import settings
from benchmarks.names import UserError
from benchmarks.report import figures
from benchmarks.report.collect import Setting
from benchmarks.report.page import markdown_with_note
from benchmarks.report.tables import Table, across, comparison, two_tasks

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FIGURE = ROOT / "docs" / "figures" / "digits-trade-off.png"
BLOCK = re.compile(r"(<!-- made by python -m benchmarks\.readme: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def digits() -> Setting:
    """The comparison on digits."""
    (setting,) = settings("compare")
    return setting


TABLES: dict[str, Callable[[], Table | None]] = {
    "digits": lambda: comparison(digits(), "validation"),
    "paper": lambda: two_tasks(settings("leading"), "validation", ("rewc-none-exact", "rewc-exact-leading")),
    "four": lambda: across(settings("four-tasks"), "validation"),
}
"""By the name in the comment that begins a block of the README."""


def filled(text: str) -> str:
    """The README with its tables made anew."""
    for name in TABLES:
        if name not in [found[2] for found in BLOCK.finditer(text)]:
            raise UserError(f"{README.name} has no block <!-- made by python -m benchmarks.readme: {name} -->")
    return BLOCK.sub(lambda found: f"{found[1]}{_table(found[2])}\n{found[3]}", text)


def _table(name: str) -> str:
    table = TABLES[name]()
    assert table is not None  # the results are kept whole
    return markdown_with_note(table)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the table is out of date")
    arguments = parser.parse_args(argv)
    before = README.read_text(encoding="utf-8")
    after = filled(before)
    if arguments.check:
        if before != after:
            raise UserError("README.md does not show what is in benchmarks/results; run python -m benchmarks.readme")
        return 0
    README.write_text(after, encoding="utf-8")
    figure = figures.trade_off(digits())
    assert figure is not None
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {README.name}, {FIGURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    call(main)
