"""Run a sweep: many configurations, in parallel, any number of times until all are done.

python -m benchmarks.sweep table1
python -m benchmarks.sweep my-sweep.toml --out runs/mine --backend ray
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.backends import BACKENDS
from benchmarks.checkpoints import discard
from benchmarks.cli import add_sweep_options, call, jobs_from, machine_from, shown
from benchmarks.config import RunConfig
from benchmarks.grid import Sweep, load_sweep, shipped_sweeps
from benchmarks.machine import Machine
from benchmarks.selection import first_phase, second_phase
from benchmarks.store import ResultStore, read_result


@dataclass
class Tally:
    """What became of the runs of a sweep."""

    done: int = 0
    already: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    undecided: list[RunConfig] = field(default_factory=list)
    """One run of every group whose strength could not be chosen, because runs of its grid failed."""


def run_configs(
    configs: Iterable[RunConfig],
    store: ResultStore,
    machine: Machine,
    *,
    jobs: int,
    backend: str = "loky",
    retry_failed: bool = False,
    label: str = "runs",
    tally: Tally | None = None,
) -> Tally:
    """Run what is not in the store yet; one result file appears as soon as its run is done.

    Safe to be stopped at any moment, to be started again, and to be started twice at once.
    """
    tally = tally or Tally()
    unique = list({config.key: config for config in configs}.values())
    todo = []
    for config in unique:
        if store.has(config):
            discard(config, machine)  # a killed sweep may have left them
            tally.already += 1
        elif store.has_failed(config) and not retry_failed:
            tally.failed.append(_read_failure(store, config))
        else:
            todo.append(config)
    store.sweep_up()
    if not todo:
        return tally
    store.check()
    with tqdm(total=len(todo), desc=label, unit="run", dynamic_ncols=True, smoothing=0.1) as bar:

        def still_wanted() -> Iterator[RunConfig]:
            for config in todo:
                if store.has(config):  # another sweep on the same folder was faster
                    tally.already += 1
                    bar.update()
                else:
                    yield config

        outcomes = BACKENDS[backend](still_wanted(), machine, min(jobs, len(todo)))
        try:
            for outcome in outcomes:
                store.write(outcome)
                if outcome["status"] == "failed":
                    tally.failed.append(outcome)
                    bar.set_postfix(failed=len(tally.failed))
                else:
                    discard(RunConfig.from_dict(outcome["config"]), machine)
                    tally.done += 1
                bar.update()
        finally:
            outcomes.close()  # type: ignore[attr-defined]  # generators: ends the workers now and not some time later
    return tally


def run_sweep(
    sweep: Sweep,
    store: ResultStore,
    machine: Machine,
    *,
    jobs: int,
    backend: str = "loky",
    retry_failed: bool = False,
) -> Tally:
    """Both phases of a sweep: the grid, then the chosen strengths with the seeds that are left."""
    options: dict[str, Any] = {"jobs": jobs, "backend": backend, "retry_failed": retry_failed}
    first = first_phase(sweep)
    tally = run_configs(first, store, machine, label="runs", **options)
    chosen, tally.undecided = second_phase(sweep, [store.read(config) for config in first if store.has(config)])
    run_configs(chosen, store, machine, label="chosen strengths, other seeds", tally=tally, **options)
    return tally


def summary(tally: Tally, store: ResultStore) -> str:
    """What to tell at the end."""
    lines = [f"{tally.done} runs done, {tally.already} were there already: {shown(store.folder)}"]
    if tally.failed:
        first = tally.failed[0]
        config = RunConfig.from_dict(first["config"])
        lines.append(f"{len(tally.failed)} failed, the first: {config}")
        lines.append(f"    {first['error']}")
        lines.append(f"    traceback in {shown(store.path(first['key'], failed=True))}; --retry-failed runs them again")
    for config in tally.undecided:
        lines.append(f"no strength chosen for {config.method} on {config.stream}: runs of its grid failed")
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sweep",
        description="Run a grid of methods × strengths × seeds × streams. One file per run; started again, it skips "
        "what is there. Strengths are chosen on validation data, unless the sweep asks for the paper's way.",
        epilog=f"Shipped sweeps: {', '.join(shipped_sweeps())}. Tables and figures: python -m benchmarks.report",
    )
    parser.add_argument("sweep", help="a .toml file (its form: benchmarks/grid.py), or the name of a shipped one")
    parser.add_argument("--out", metavar="DIR", help="folder of the result files (default: runs/<sweep>/results)")
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="instead of those in the file")
    parser.add_argument("--list", action="store_true", help="show what would be run, and whether it is done, and stop")
    add_sweep_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = make_parser().parse_args(argv)
    sweep = load_sweep(arguments.sweep, seeds=arguments.seeds)
    store = ResultStore(arguments.out or Path("runs") / sweep.name / "results")
    if arguments.list:
        for config in first_phase(sweep):
            mark = "done" if store.has(config) else "failed" if store.has_failed(config) else "to do"
            print(f"{config.key}  {mark:6}  {config}")
        return 0
    jobs = jobs_from(arguments)
    tally = run_sweep(
        sweep,
        store,
        machine_from(arguments, jobs),
        jobs=jobs,
        backend=arguments.backend,
        retry_failed=arguments.retry_failed,
    )
    print(summary(tally, store))
    if not tally.failed:
        print(f"report: python -m benchmarks.report {shown(store.folder)}")
    return 1 if tally.failed or tally.undecided else 0


def _read_failure(store: ResultStore, config: RunConfig) -> dict[str, Any]:
    return read_result(store.path(config.key, failed=True))


if __name__ == "__main__":
    call(main, "stopped; results so far are kept, the same command goes on from there")
