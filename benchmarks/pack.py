"""Many result files as one, to be kept beside the code; and back again, to go on with a sweep from what is kept.

python -m benchmarks.pack runs/table1/results benchmarks/results/table1.jsonl
python -m benchmarks.pack benchmarks/results/table1.jsonl runs/table1/results
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.cli import call, shown
from benchmarks.names import UserError
from benchmarks.store import PACKED, ResultStore, read_folders, write_packed


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pack",
        description=f"Write all results of folders into one {PACKED} file, a line for each; or those of such "
        "files into a folder, where a sweep then finds them done.",
    )
    parser.add_argument("results", nargs="+", metavar="FROM", help=f"folders with result files, or {PACKED} files")
    parser.add_argument(
        "to", metavar="TO", help=f"a {PACKED} file, such as benchmarks/results/table1.jsonl, or a folder"
    )
    arguments = parser.parse_args(argv)
    to = Path(arguments.to)
    results = read_folders(arguments.results)
    if to.suffix == PACKED:
        write_packed(results, to)
    elif to.suffix:
        raise UserError(f"{to}: the name of a packed file ends with {PACKED}, and that of a folder has no ending")
    else:
        for result in results:
            ResultStore(to).write(result)
    print(f"{len(results)} results: {shown(to)}")
    return 0


if __name__ == "__main__":
    call(main)
