"""Runs in processes of this machine, through joblib's loky.

Every lane is a loky executor with a single worker. (One executor with many workers, as `joblib.Parallel` makes it,
kills all of them when one dies; here a worker that is killed takes nothing but its own run with it.)
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import BrokenProcessPool

from benchmarks.config import RunConfig
from benchmarks.execute import attempt, failure
from benchmarks.machine import Machine

TRIALS = 3
"""A run whose worker dies this often is recorded as failed."""
TAKEN_UP_SECONDS = 5.0
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run_local(configs: Iterator[RunConfig], machine: Machine, jobs: int) -> Iterator[dict[str, Any]]:
    """See `benchmarks.backends`."""
    shared = _Shared(configs, machine)
    lanes = [_Lane(shared) for _ in range(jobs)]
    try:
        for lane in lanes:
            lane.start()
        open_lanes = jobs
        while open_lanes:
            item = shared.outcomes.get()
            if item is None:
                open_lanes -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        shared.stop.set()
        for lane in lanes:
            lane.close()


class _Shared:
    """What the lanes have in common."""

    def __init__(self, configs: Iterator[RunConfig], machine: Machine) -> None:
        self.configs, self.machine = configs, machine
        self.outcomes: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        self.stop = threading.Event()
        self._lock = threading.Lock()

    def next(self) -> RunConfig | None:
        with self._lock:
            return None if self.stop.is_set() else next(self.configs, None)


class _Lane(threading.Thread):
    """Takes one run after the other; puts None when there is nothing left."""

    def __init__(self, shared: _Shared) -> None:
        super().__init__(daemon=True)
        self.shared = shared
        self.executor: ProcessPoolExecutor | None = None
        self._future: Future[dict[str, Any]] | None = None
        self._submitting = threading.Lock()

    def run(self) -> None:
        try:
            while (config := self.shared.next()) is not None:
                outcome = self._run_one(config)
                if outcome is not None:
                    self.shared.outcomes.put(outcome)
            self._release()
            self.shared.outcomes.put(None)
        except BaseException as error:
            self.shared.outcomes.put(error)

    def _run_one(self, config: RunConfig) -> dict[str, Any] | None:
        for _ in range(TRIALS):
            future = self._submit(config)
            if future is None:
                return None
            try:
                return future.result()
            except BrokenProcessPool as error:
                if self.shared.stop.is_set():
                    return None
                reason = str(error).strip().splitlines()[0]
                self.close()
        message = f"the worker process died {TRIALS} times (out of memory?)"
        return failure(config, self.shared.machine, message, reason)

    def _submit(self, config: RunConfig) -> Future[dict[str, Any]] | None:
        with self._submitting:  # either `close` sees the call, or the call is not made
            if self.shared.stop.is_set():
                return None
            self.executor = self.executor or _idle_or_new_worker(self.shared.machine)
            self._future = self.executor.submit(attempt, config, self.shared.machine)
            return self._future

    def _release(self) -> None:
        """Keep the worker for the next phase of a sweep: starting one takes seconds."""
        if self.executor is not None:
            _IDLE[self.shared.machine.threads].append(self.executor)
            self.executor = None

    def close(self) -> None:
        with self._submitting:
            executor, self.executor = self.executor, None
        if executor is not None:
            end = time.monotonic() + TAKEN_UP_SECONDS
            while self._future and not (self._future.running() or self._future.done()) and time.monotonic() < end:
                time.sleep(0.01)  # loky ends with a traceback if it is told to stop before it has taken up a call
            executor.shutdown(wait=True, kill_workers=True)


_IDLE: dict[int, list[ProcessPoolExecutor]] = defaultdict(list)
"""Workers between two calls, by their number of threads."""


def _idle_or_new_worker(machine: Machine) -> ProcessPoolExecutor:
    try:
        return _IDLE[machine.threads].pop()
    except IndexError:
        return ProcessPoolExecutor(
            max_workers=1,
            initializer=_prepare_worker,
            initargs=(os.getpid(),),
            env=dict.fromkeys(THREAD_VARIABLES, str(machine.threads)),
        )


@atexit.register
def _end_idle_workers() -> None:
    for executors in _IDLE.values():
        while executors:
            executors.pop().shutdown(wait=True, kill_workers=True)


def _prepare_worker(parent: int) -> None:
    """Ctrl-C is the parent's business; and a worker whose parent was killed has nobody left to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
