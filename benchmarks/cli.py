"""What the commands have in common: machine options, and errors and Ctrl-C that end in one line."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import joblib

from avalanche_rewc.streams import resolve_data_root
from benchmarks.backends import BACKENDS
from benchmarks.machine import Machine
from benchmarks.names import UserError

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


def add_machine_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """--data-root, --device and --checkpoints, in a group that is returned."""
    group = parser.add_argument_group("machine")
    group.add_argument(
        "--data-root", metavar="DIR", help="folder of all data sets (default: the variable REWC_DATA, else ./data)"
    )
    group.add_argument("--device", default="cpu", help="where torch computes, such as cpu or cuda:0 (default: cpu)")
    group.add_argument(
        "--checkpoints",
        metavar="DIR",
        help="store there what a run has learned after each task; killed and started again, it goes on from there",
    )
    return group


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Options of commands that run many configurations."""
    add_machine_options(parser)
    group = parser.add_argument_group("execution")
    group.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time; torch's threads are divided among them (default: cores)"
    )
    group.add_argument(
        "--backend",
        choices=list(BACKENDS),
        default="loky",
        help="loky: processes of this machine; ray: the cluster at RAY_ADDRESS, else a local one (default: loky)",
    )
    group.add_argument("--threads", type=int, metavar="N", help="of torch, for each run (default: cores / jobs)")
    group.add_argument(
        "--first-tasks",
        metavar="DIR",
        help="keep networks that learned a first task there, for all runs that start with it "
        "(default: runs/first-tasks; with ray: every run learns it)",
    )
    group.add_argument("--retry-failed", action="store_true", help="run again what failed before")


def machine_from(arguments: argparse.Namespace, jobs: int = 1, threads: int | None = None) -> Machine:
    """The machine as the options describe it; processors are divided among `jobs` runs unless `threads` says more."""
    threads = threads or getattr(arguments, "threads", None)
    if threads is not None and threads < 1:
        raise UserError(f"--threads {threads}: at least one")
    kept = getattr(arguments, "first_tasks", None)
    if kept is None and getattr(arguments, "backend", None) == "loky":
        kept = "runs/first-tasks"
    root = str(resolve_data_root(arguments.data_root).absolute())  # workers may have another current folder
    return Machine(
        root,
        arguments.device,
        threads or max(1, joblib.cpu_count() // jobs),
        None if kept is None else str(Path(kept).absolute()),
        None if arguments.checkpoints is None else str(Path(arguments.checkpoints).absolute()),
    )


def jobs_from(arguments: argparse.Namespace) -> int:
    """--jobs, or the number of processors."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"--jobs {arguments.jobs}: at least one run at a time")
    return int(arguments.jobs or joblib.cpu_count())


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def call(main: Callable[[list[str] | None], int], stopped: str = "stopped") -> None:
    """Run a command: what the user can put right, and Ctrl-C, are said in one line, without a traceback."""
    if callable(signal.getsignal(signal.SIGINT)):  # else Ctrl-C is not for us
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main(None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"\n{stopped}", file=sys.stderr)
        code = INTERRUPTED
    sys.stdout.flush()
    sys.exit(code)
