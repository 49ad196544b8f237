"""The comparison of `make compare`: the main methods on scikit-learn's digits, in a minute or two.

python -m benchmarks.compare
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.cli import add_sweep_options, call, jobs_from, machine_from, shown
from benchmarks.grid import load_sweep
from benchmarks.report.build import write_report
from benchmarks.report.collect import collect
from benchmarks.report.tables import Table, comparison
from benchmarks.selection import first_phase, second_phase
from benchmarks.store import ResultStore
from benchmarks.sweep import run_sweep, summary

SWEEP = "compare"


def make_parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Compare fine-tuning, EWC (Avalanche's, and with the true Fisher), LwF, R-EWC and joint training "
        "on scikit-learn's digits, with λ and α chosen on validation data. Prints a table and writes a report.",
    )
    parser.add_argument(
        "--out", default=f"runs/{SWEEP}", metavar="DIR", help="for results and report (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="instead of 0 1 2")
    add_sweep_options(parser)
    return parser


def aligned(table: Table) -> str:
    """A table as text for a terminal."""
    rows = [table.header, *table.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.header))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * max(map(len, lines)))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = make_parser().parse_args(argv)
    sweep = load_sweep(SWEEP, seeds=arguments.seeds)
    out = Path(arguments.out)
    store = ResultStore(out / "results")
    jobs = jobs_from(arguments)
    print(f"{sweep.title}. {sweep.description}")
    tally = run_sweep(
        sweep,
        store,
        machine_from(arguments, jobs),
        jobs=jobs,
        backend=arguments.backend,
        retry_failed=arguments.retry_failed,
    )
    if tally.failed:
        print(summary(tally, store))
        return 1
    # Only this sweep's runs: the folder may hold those of other seeds.
    results = [store.read(config) for config in first_phase(sweep)]
    results += [store.read(config) for config in second_phase(sweep, results)[0]]
    table = comparison(collect(results)[0], "validation")
    assert table is not None  # nothing failed, so every method has its runs
    print(f"\n{aligned(table)}\n\n{table.note}")
    written = write_report(results, out / "report", title=sweep.title)
    print(f"report with figures: {shown(written.html)}")
    return 0


if __name__ == "__main__":
    call(main, "stopped; results so far are kept, the same command goes on from there")
