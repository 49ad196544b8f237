"""Tables, figures and a page from result files alone.

python -m benchmarks.report runs/table1/results
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.cli import call, shown
from benchmarks.report.build import DEFAULT_TITLE, write_report
from benchmarks.store import read_folders


def make_parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description="Write tables (Markdown), figures (PNG, SVG) and one self-contained HTML page from result files.",
    )
    parser.add_argument("results", nargs="+", metavar="DIR", help="folders with result files of sweeps")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: `report` beside the first folder)")
    parser.add_argument("--title", default=DEFAULT_TITLE, help="of the page")
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = make_parser().parse_args(argv)
    results = read_folders(arguments.results)
    out = Path(arguments.out) if arguments.out else Path(arguments.results[0]).parent / "report"
    written = write_report(results, out, title=arguments.title)
    print(f"{len(results)} results: {shown(written.html)}, {shown(written.markdown)}, {shown(written.figures)}/")
    return 0


if __name__ == "__main__":
    call(main)
