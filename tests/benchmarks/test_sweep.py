"""Sweeps that are interrupted, killed, started twice, or meet runs that fail."""

import os
import signal

import psutil
import pytest

from benchmarks.backends import local
from benchmarks.grid import parse_sweep, tomllib
from benchmarks.machine import Machine
from benchmarks.store import ResultStore
from benchmarks.sweep import run_configs
from tests.benchmarks.small import config, start, stored, undisturbed, wait_for

FILE = """
seeds = [0, 1, 2]
[settings]
stream = "digits"
epochs = 4
[[grid]]
methods = ["naive", "joint"]
[[grid]]
methods = ["rewc"]
strengths = [100]
"""


@pytest.fixture
def sweep(tmp_path):
    """A sweep file, the folder of its results, and its runs."""
    file = tmp_path / "small.toml"
    file.write_text(FILE)
    return file, tmp_path / "results", parse_sweep("small", tomllib.loads(FILE)).runs


def command(file, out, *more):
    return start("benchmarks.sweep", file, "--out", out, "--jobs", "2", *more)


def finished(out):
    return len(stored(out)) if out.exists() else 0


def test_killed_half_way_and_started_again(sweep):
    """SIGKILL, no chance to clean up: every result is there exactly once, as if nothing had happened."""
    file, out, runs = sweep
    process = command(file, out)
    wait_for(lambda: finished(out) >= 3)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()  # and not `communicate`: workers that live on would keep its pipes open
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert 3 <= len(before) < len(runs), "killed too late to matter"
    psutil.wait_procs(workers, timeout=20)
    assert not [worker for worker in workers if worker.is_running()], "workers outlived their parent"

    process = command(file, out)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert f"{len(runs) - len(before)} runs done, {len(before)} were there already" in output
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.json")}
    assert {name: after[name] for name in before} == before, "a finished run was run again"
    assert stored(out) == undisturbed(runs)


def test_two_sweeps_on_one_folder_and_a_killed_worker(sweep):
    """A killed worker loses its run only, which is started again; a second sweep at the same time is harmless."""
    file, out, runs = sweep
    # one worker each; told that there is one core, since the number of threads is part of a result
    one = {"LOKY_MAX_CPU_COUNT": "1"}
    processes = [start("benchmarks.sweep", file, "--out", out, "--jobs", "1", **one) for _ in range(2)]
    wait_for(lambda: finished(out) >= 2)
    workers = [p for p in psutil.Process(processes[0].pid).children(recursive=True) if "loky" in " ".join(p.cmdline())]
    workers = [p for p in workers if "resource_tracker" not in " ".join(p.cmdline())]
    assert workers
    workers[0].kill()
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert stored(out) == undisturbed(runs)
    assert not list(out.glob(".*")), "something half-written is left"


def test_ctrl_c_ends_cleanly(sweep):
    file, out, _ = sweep
    process = start("benchmarks.sweep", file, "--out", out, "--jobs", "1")
    wait_for(lambda: finished(out) >= 1)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on from there" in errors
    psutil.wait_procs(children, timeout=20)
    assert not [child for child in children if child.is_running()]


def test_a_failed_run_does_not_stop_the_rest_and_is_retried_when_asked(tmp_path):
    store = ResultStore(tmp_path)
    good, bad = config(seed=1), config(n_experiences=3)  # 10 classes cannot be divided by 3
    tally = run_configs([bad, good], store, Machine(), jobs=1)
    assert (tally.done, len(tally.failed)) == (1, 1)
    assert store.has(good)
    (record,) = store.failures()
    assert record["config"] == bad.to_dict()
    assert "cannot be divided" in record["error"]
    assert "Traceback" in record["traceback"]

    again = run_configs([bad, good], store, Machine(), jobs=1)
    assert (again.done, again.already, len(again.failed)) == (0, 1, 1)
    store.path(bad.key, failed=True).write_text(store.path(bad.key, failed=True).read_text().replace("divided", "X"))
    retried = run_configs([bad, good], store, Machine(), jobs=1, retry_failed=True)
    assert len(retried.failed) == 1
    assert "cannot be divided" in store.failures()[0]["error"], "it was not run again"


def die(config, machine):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_that_kills_its_worker_every_time_is_recorded(monkeypatch):
    monkeypatch.setattr(local, "attempt", die)
    (found,) = local.run_local(iter([config()]), Machine(), 1)
    assert (found["key"], found["status"]) == (config().key, "failed")
    assert "died 3 times" in found["error"]
