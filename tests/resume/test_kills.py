"""Experiments killed with SIGKILL, in a real process, at every kind of moment: they end as if nothing had happened."""

import json
import random
import signal
import time
import warnings
from pathlib import Path

import pytest

from avalanche_rewc.files import TEMPORARY
from avalanche_rewc.resume.file import read_newest
from tests.resume.experiment import EXPERIENCES, FAULTS, experiment, on_a_small_disk, start
from tests.small_disk import UNAVAILABLE
from tests.tally import report, trials

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What comes out if nobody disturbs it."""
    found = experiment(tmp_path_factory.mktemp("undisturbed") / "checkpoints")
    assert found["trained"] == list(range(EXPERIENCES))
    assert len(found["numbers"]["results"]) == EXPERIENCES
    return found["numbers"]


def finish(folder, out, **options):
    """Run it to its end, in a new process."""
    process = start(folder, out, **options)
    process.join(300)
    assert process.exitcode == 0
    return json.loads(out.read_text())


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "full disk"])
def test_killed_at_that_moment(fault, undisturbed, tmp_path):
    """In the third experience; two are finished, or three where the new checkpoint had its name already."""
    folder, out = tmp_path / "checkpoints", tmp_path / "out.json"
    process = start(folder, out, fault)
    process.join(300)
    assert process.exitcode == KILLED
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no file with the name of a checkpoint may be torn
        read_newest(folder)
    found = finish(folder, out)
    assert found["trained"] in ([2, 3], [3]), "it did not go on from where it was"
    report(f"run killed {fault}", 1, int(found["numbers"] != undisturbed))


def test_killed_at_random_moments(undisturbed, tmp_path):
    """Each run again and again until it gets through, and runs until there were enough kills."""
    moments, duration, kills, lost = random.Random(0), 1.0, 0, 0
    for trial in range(100 + trials(3, 300)):
        if kills >= trials(3, 300):
            break
        folder, out = tmp_path / f"{trial}", tmp_path / f"{trial}.json"
        for _ in range(50):
            begun = time.monotonic()
            process = start(folder, out)
            process.join(moments.uniform(0.0, 1.5 * duration))
            process.kill()
            process.join()
            duration = time.monotonic() - begun if process.exitcode == 0 else 1.2 * duration  # of this machine, now
            if process.exitcode == 0:
                break
            kills += 1
        found = json.loads(out.read_text()) if out.exists() else finish(folder, out)
        lost += found["numbers"] != undisturbed
        names = [path.name for path in folder.iterdir() if not path.name.startswith(TEMPORARY)]
        assert sorted(names) == ["experience-0003.checkpoint", "experience-0004.checkpoint"]
    assert kills >= trials(3, 300), "killed too late to matter"
    report("runs killed at random moments", kills, lost)


def test_a_full_disk_costs_checkpoints_and_nothing_else(undisturbed, tmp_path):
    folder, out = tmp_path / "checkpoints", tmp_path / "out.json"
    found = finish(folder, out, fault="full disk")
    assert list(folder.iterdir()) == [], "something half-written is left"
    report("runs on a full disk", 1, int(found["numbers"] != undisturbed))


def test_a_disk_that_fills_up_keeps_what_was_stored(undisturbed, tmp_path):
    """A real one, with room for two checkpoints; killed after that, the run would go on from the second."""
    folder, out = tmp_path / "checkpoints", tmp_path / "out.json"
    process = start(folder, out, 100_000, target=on_a_small_disk)
    process.join(300)
    if process.exitcode == UNAVAILABLE:
        pytest.skip("no mounts of our own here")
    assert process.exitcode == 0
    mentioned = Path(f"{out}.warnings").read_text().splitlines()
    assert len(mentioned) == 2
    assert all("No space left on device" in line for line in mentioned)
    lost = json.loads(out.read_text())["numbers"] != undisturbed
    kept = Path(f"{folder} kept")
    assert sorted(path.name for path in kept.iterdir()) == [f"experience-000{i}.checkpoint" for i in (1, 2)]
    found = finish(kept, out)
    assert found["trained"] == [2, 3]
    report("runs on a disk that fills up, and resumed", 2, int(lost) + int(found["numbers"] != undisturbed))


def test_a_full_disk_is_mentioned(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("avalanche_rewc.resume.resumable.write_checkpoint", full)
    with pytest.warns(RuntimeWarning, match=r"no checkpoint after experience 1: .*No space left.* The run goes on"):
        experiment(tmp_path, stop=2)


def test_two_at_once_do_each_other_no_harm(undisturbed, tmp_path):
    folder = tmp_path / "checkpoints"
    outs = [tmp_path / f"{i}.json" for i in range(2)]
    processes = []
    for out in outs:
        processes.append(start(folder, out))
        time.sleep(0.2)
    for process in processes:
        process.join(300)
    lost = sum(json.loads(out.read_text())["numbers"] != undisturbed for out in outs)
    report("two runs in one folder at once", 2, lost)
