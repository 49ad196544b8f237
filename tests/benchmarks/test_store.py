"""Result files are whole or not there, and results win over failures."""

import os
import threading
import time

import pytest

from avalanche_rewc.files import STALE_SECONDS, TEMPORARY
from benchmarks.config import SCHEMA
from benchmarks.execute import failure
from benchmarks.machine import Machine
from benchmarks.names import UserError
from benchmarks.store import ResultStore, read_folders
from tests.benchmarks.small import config

RUN = config()


def result(**more):
    return {"schema": SCHEMA, "status": "done", "key": RUN.key, "config": RUN.to_dict(), **more}


def test_a_result_takes_the_place_of_a_failure_and_not_the_other_way_round(tmp_path):
    store = ResultStore(tmp_path / "made" / "by itself")
    store.write(failure(RUN, Machine(), "boom", "Traceback"))
    assert store.has_failed(RUN)
    assert not store.has(RUN)
    assert store.results() == []
    store.write(result())
    assert store.has(RUN)
    assert store.failures() == []
    store.write(failure(RUN, Machine(), "boom", "Traceback"))
    assert store.has(RUN)
    assert not store.has_failed(RUN)


def test_readers_never_see_half_a_file(tmp_path):
    store = ResultStore(tmp_path)
    store.write(result(padding="x" * 10))
    stop = threading.Event()

    def writer():
        while not stop.is_set():
            store.write(result(padding="x" * 2_000_000))

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for _ in range(200):
            assert len(store.read(RUN)["padding"]) in (10, 2_000_000)
            assert len(store.results()) == 1
    finally:
        stop.set()
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == [f"{RUN.key}.json"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_umask_says_who_may_read(tmp_path, mask):
    before = os.umask(mask)
    try:
        path = ResultStore(tmp_path).write(result())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    store = ResultStore(tmp_path)
    with pytest.raises(TypeError):
        store.write(result(bad=object()))
    assert list(tmp_path.iterdir()) == []


def test_old_leftovers_are_removed_and_fresh_ones_are_not(tmp_path):
    old, fresh = tmp_path / f"{TEMPORARY}old", tmp_path / f"{TEMPORARY}fresh"
    for path in (old, fresh):
        path.write_text("{")
    past = time.time() - STALE_SECONDS - 1
    os.utime(old, (past, past))
    ResultStore(tmp_path).sweep_up()
    assert not old.exists()
    assert fresh.exists()
    assert ResultStore(tmp_path).results() == []


def test_damaged_and_foreign_files_are_named(tmp_path):
    (tmp_path / "damaged.json").write_text('{"schema": 1')
    with pytest.raises(UserError, match=r"damaged\.json"):
        read_folders([tmp_path])
    (tmp_path / "damaged.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="format 99"):
        read_folders([tmp_path])
    with pytest.raises(UserError, match="nowhere"):
        read_folders([tmp_path / "nowhere"])


def test_a_run_found_in_two_folders_counts_once(tmp_path):
    for name in ("a", "b"):
        ResultStore(tmp_path / name).write(result())
    assert len(read_folders([tmp_path / "a", tmp_path / "b"])) == 1
