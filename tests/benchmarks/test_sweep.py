"""Sweeps that are interrupted, killed, started twice, or meet runs that fail."""

import contextlib
import importlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.backends import local
from benchmarks.execute import execute
from benchmarks.grid import parse_sweep, tomllib
from benchmarks.machine import Machine
from benchmarks.names import UserError
from benchmarks.store import ResultStore
from benchmarks.sweep import main, run_configs
from tests import small_disk
from tests.benchmarks.small import ROOT, config, start, stored, undisturbed, wait_for
from tests.tally import report, trials

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
    return start("benchmarks.sweep", file, "--out", out, "--jobs", "2", *kept_beside(out), *more)


def kept_beside(out):
    """First tasks of a test are its own."""
    return "--first-tasks", out.parent / "first-tasks"


def workers_of(process):
    """The processes that run the runs; one that was killed is a zombie until its parent looks."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "resource_tracker" not in " ".join(child.cmdline()):
                found.append(child)
    return found


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
    output, errors = process.communicate(timeout=900)
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
    processes = [
        start("benchmarks.sweep", file, "--out", out, "--jobs", "1", *kept_beside(out), **one) for _ in range(2)
    ]
    wait_for(lambda: finished(out) >= 2)
    workers = [p for p in psutil.Process(processes[0].pid).children(recursive=True) if "loky" in " ".join(p.cmdline())]
    workers = [p for p in workers if "resource_tracker" not in " ".join(p.cmdline())]
    assert workers
    workers[0].kill()
    outputs = [process.communicate(timeout=900) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert stored(out) == undisturbed(runs)
    assert not list(out.glob(".*")), "something half-written is left"


def test_random_kills_of_workers_and_parents(sweep, tmp_path, capsys):
    """Two sweeps on one folder, with checkpoints; whoever of them is killed is started again until all is done."""
    file, out, runs = sweep
    options = (file, "--out", out, "--jobs", "1", "--retry-failed", "--checkpoints", tmp_path / "checkpoints")
    options += ("--first-tasks", tmp_path / "first-tasks")
    processes = [start("benchmarks.sweep", *options, LOKY_MAX_CPU_COUNT="1") for _ in range(2)]
    choose, kills = random.Random(0), 0
    wait_for(lambda: finished(out) >= 1)
    while kills < trials(3, 60) and any(process.poll() is None for process in processes):
        i = choose.randrange(2)
        if processes[i].poll() is None:
            with contextlib.suppress(psutil.Error):  # it ended by itself meanwhile
                victim = choose.choice([psutil.Process(processes[i].pid), *workers_of(processes[i])])
                victim.kill()
                kills += 1
                if victim.pid == processes[i].pid:
                    processes[i].wait()
                    processes[i] = start("benchmarks.sweep", *options, LOKY_MAX_CPU_COUNT="1")
        time.sleep(choose.uniform(0, 2))
    for process in processes:
        process.communicate(timeout=900)
    for process in processes:  # either of them may have recorded what the other's victims did not finish
        assert process.returncode in (0, 1)
    assert main([*map(str, options)]) == 0
    assert f"0 runs done, {len(runs)} were there already" in capsys.readouterr().out, "a run was lost"
    assert not list((tmp_path / "checkpoints").iterdir()), "checkpoints of finished runs are left"
    assert kills, "too fast to be killed"
    report("sweeps: workers and parents killed at random", kills, int(stored(out) != undisturbed(runs)))


def run_here(words, **options):
    """A command of this project, waited for."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "LOKY_MAX_CPU_COUNT": "1"}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, **options)


def test_a_full_disk_costs_nothing_that_was_stored(sweep, tmp_path):
    """A real disk with room for two results; where there can be none, files that cannot grow beyond 1 kB."""
    file, out, runs = sweep
    runs = [run for run in runs if run.seed == 0]
    ResultStore(out).write(execute(runs[0], Machine()))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    words = [sys.executable, "-m", "benchmarks.sweep", file, "--out", out, "--jobs", "1", "--seeds", "0"]
    words = [*map(str, [*words, "--checkpoints", tmp_path / "checkpoints", *kept_beside(out)])]
    after, reason = out, "File too large"
    if small_disk.mounts():
        after, reason = tmp_path / "kept", "No space left on device"
        after.mkdir()
        words = small_disk.on_small_disk(words, out, 2 * 4096, after)
    else:
        words = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *words]
    process = run_here(words)
    assert process.returncode == 2, process.stderr
    assert "Traceback" not in process.stderr
    assert f"results cannot be written to {out} ({reason})" in process.stderr
    lock = subprocess.run(["git", "rev-parse", "--git-path", "index.lock"], cwd=ROOT, capture_output=True, text=True)
    assert not lock.stdout or not (ROOT / lock.stdout.strip()).exists(), "the repository is left locked"
    found = {path.name: path.read_bytes() for path in after.iterdir()}
    assert before.items() <= found.items(), "something that was stored is lost"
    assert len(found) == len(stored(after)) < len(runs), "something is half-written, or the disk was not full"
    tally = run_configs(runs, ResultStore(after), Machine(), jobs=1)
    assert (tally.done, tally.already, tally.failed) == (len(runs) - len(found), len(found), [])
    report(f"sweeps on a full disk: {reason}", 1, int(stored(after) != undisturbed(runs)))


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_folder_that_cannot_be_written_to_is_named_before_anything_is_run(command, sweep, tmp_path, monkeypatch):
    """Read-only for everybody, for root too: it lies in a file."""
    monkeypatch.setattr("benchmarks.execute.execute", None)
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "results"
    what = [sweep[0]] if command == "sweep" else ["--method", "naive"]
    main = importlib.import_module(f"benchmarks.{command}").main
    with pytest.raises(UserError, match=r"results cannot be written to .*file/results \(Not a directory\)"):
        main([*map(str, what), "--out", str(out)])


def test_a_read_only_folder_is_named_before_anything_is_run(monkeypatch):
    monkeypatch.setattr("benchmarks.backends.local.attempt", None)
    with small_disk.read_only_folder() as folder:
        for place in (folder, folder / "results"):
            with pytest.raises(UserError, match=rf"results cannot be written to {place} \(Permission denied\)"):
                run_configs([config()], ResultStore(place), Machine(), jobs=1)
        left = len(list(folder.iterdir()))
    report("sweeps in a read-only folder", 2, left)


def test_ctrl_c_ends_cleanly(sweep):
    file, out, _ = sweep
    seeds = map(str, range(500))  # more than could be done by then
    process = start("benchmarks.sweep", file, "--out", out, "--jobs", "1", *kept_beside(out), "--seeds", *seeds)
    wait_for(lambda: finished(out) >= 1)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
    _, errors = process.communicate(timeout=600)
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


def test_many_tiny_runs_leave_nothing_behind(tmp_path):
    """One sweep of many runs in the same workers: no files but results, no growing processes, no shared memory."""
    seeds = list(range(trials(200, 2000)))
    file = tmp_path / "tiny.toml"
    file.write_text(f'seeds = {seeds}\nsettings = {{ stream = "digits", epochs = 1 }}\n[[grid]]\nmethods = ["naive"]\n')
    out = tmp_path / "results"
    process = command(file, out)
    sweep = psutil.Process(process.pid)
    wait_for(lambda: finished(out) >= 4)
    assert [name for name in os.listdir("/dev/shm") if f"-{process.pid}-" in name], "there is something to leave"
    workers = sweep.children(recursive=True)
    files = sum(w.num_fds() for w in workers if w.is_running())
    wait_for(lambda: finished(out) >= len(seeds) - 2)
    later = [w for w in sweep.children(recursive=True) if w.is_running()]
    assert {w.pid for w in later} <= {w.pid for w in workers}, "workers are kept, not started anew"
    assert sum(w.num_fds() for w in later) <= files + 4
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    psutil.wait_procs(workers, timeout=20)
    assert not [w for w in workers if w.is_running()]
    assert sorted(p.suffix for p in out.iterdir()) == [".json"] * len(seeds)
    assert not [name for name in os.listdir("/dev/shm") if f"-{process.pid}-" in name], "its semaphores"
    report("sweeps: tiny runs in one go", len(seeds))
