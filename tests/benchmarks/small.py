"""Small real runs, and commands started as a user would start them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.execute import execute, numbers
from benchmarks.machine import Machine
from benchmarks.plan import make_config
from benchmarks.store import FAILED

ROOT = Path(__file__).resolve().parents[2]


def config(method="naive", strength=None, **settings):
    return make_config(**{"stream": "digits", "method": method, "strength": strength, "epochs": 1, **settings})


_EXECUTED = {}


def undisturbed(configs):
    """The numbers of runs executed here, one after the other, by run."""
    for c in configs:
        if c.key not in _EXECUTED:
            _EXECUTED[c.key] = comparable(execute(c, Machine()))
    return {c.key: _EXECUTED[c.key] for c in configs}


def stored(folder):
    """The numbers in result files, by file name."""
    files = [path for path in Path(folder).glob("*.json") if not path.name.endswith(FAILED)]
    return {path.stem: comparable(json.loads(path.read_text())) for path in files}


def comparable(result):
    """What must be equal, with the commit left out: it may be made while tests run."""
    found = json.loads(json.dumps(numbers(result)))
    found["versions"].pop("commit")
    return found


_STARTED = []


def start(*arguments, **environment):
    """A command in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        # two cores, whatever the machine has: torch's threads, and with them the last bits, follow from it
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOKY_MAX_CPU_COUNT": "2", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _STARTED.append(process)
    return process


def end_all():
    """A test that fails must not leave its commands running beside the tests that follow."""
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(condition, seconds=600):
    """Wait until a condition holds; fail if it does not. Long: a machine that does other things is no failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        if _STARTED and all(process.poll() is not None for process in _STARTED) and not condition():
            raise AssertionError(f"what was waited for has ended: {_STARTED[-1].communicate()}")
        time.sleep(0.02)
