"""Many result files as one, to be kept beside the code.

python -m benchmarks.pack runs/table1/results benchmarks/results/table1.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.cli import call, shown
from benchmarks.names import UserError
from benchmarks.store import PACKED, read_folders, write_packed


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pack",
        description=f"Write all results of folders (or packed files) into one {PACKED} file, a line for each.",
    )
    parser.add_argument("results", nargs="+", metavar="DIR", help="folders with result files of sweeps")
    parser.add_argument("file", metavar="FILE", help=f"to write, such as benchmarks/results/table1{PACKED}")
    arguments = parser.parse_args(argv)
    path = Path(arguments.file)
    if path.suffix != PACKED:
        raise UserError(f"{path}: the name of a packed file ends with {PACKED}")
    results = read_folders(arguments.results)
    write_packed(results, path)
    print(f"{len(results)} results: {shown(path)}")
    return 0


if __name__ == "__main__":
    call(main)
