"""How fast the library is beside others.

python -m benchmarks.speed                        # measure what is not measured yet, then write the page
python -m benchmarks.speed steps data --again     # measure these parts again
python -m benchmarks.speed page                   # only write benchmarks/SPEED.md and its figure
python -m benchmarks.speed page --check           # only say whether the page is up to date

Use an idle machine with two cores or more. Rivals that are not installed (`pip install .[speed]`, as `make speed` does)
are left out and named. Results are kept after every part, and an interrupted measurement goes on with the next one.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.cli import call
from benchmarks.names import UserError, unknown
from benchmarks.speed import page
from benchmarks.speed.parts import PARTS, read, run, work, write
from benchmarks.speed.timing import CLOCKS


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    shown = "; ".join(f"{name}: {part.about}" for name, part in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="part", help=f"default: all. {shown}")
    parser.add_argument("--again", action="store_true", help="measure also what has been measured")
    parser.add_argument("--quick", action="store_true", help="few rounds, small sizes: to see that everything works")
    parser.add_argument("--check", action="store_true", help="with page: change nothing; fail if it is out of date")
    parser.add_argument(
        "--threads", type=int, action="append", help="may be given twice; default: 1 and 2 where both are of interest"
    )
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="processor: for one thread on a machine that is busy"
    )
    parser.add_argument("--work", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for part in options.parts:
        if part not in (*PARTS, "page"):
            raise unknown("part", part, [*PARTS, "page"])
    if options.work:
        work(options.work, options.threads[0], options.quick, options.clock)
        return 0
    if options.parts == ["page"]:
        return _page(options.check)
    measured = read(page.KEPT)
    for name in [part for part in options.parts or PARTS if part != "page"]:
        for threads in options.threads or PARTS[name].threads:
            key = f"{name}@{threads}"
            if key in measured and not options.again and (options.quick or not measured[key]["quick"]):
                print(f"{key}: measured before")
                continue
            start = time.perf_counter()
            found = run(name, threads, options.quick, options.clock)
            if not options.quick:  # a whole measurement takes the place of first looks, whatever their threads
                measured = {k: e for k, e in measured.items() if not (e["quick"] and k.startswith(f"{name}@"))}
            measured[key] = found
            write(page.KEPT, measured)
            print(f"{key}: {time.perf_counter() - start:.0f} s")
    return _page(False)


def _page(check: bool) -> int:
    text = page.written(draw=not check)
    if check:
        if not page.PAGE.is_file() or page.PAGE.read_text(encoding="utf-8") != text:
            raise UserError(f"{page.PAGE.name} is not what the results say; run python -m benchmarks.speed page")
        return 0
    page.PAGE.write_text(text, encoding="utf-8")
    print(f"written: benchmarks/{page.PAGE.name}")
    return 0


if __name__ == "__main__":
    call(main)
