"""Checkpoint files: damaged ones are left out, foreign ones refused, and none is ever executed."""

import hashlib
import io
import os
import pickle

import pytest
import torch

from avalanche_rewc.resume import file as module
from avalanche_rewc.resume.file import FORMAT, MAGIC, read_newest, write_checkpoint
from tests.tally import report, trials


@pytest.fixture
def two(tmp_path):
    """A folder with two checkpoints, and the path of the newer one."""
    for number in (1, 2):
        newest = write_checkpoint(tmp_path, number, {"number": number, "weights": torch.randn(30, 30)})
    return newest


def test_the_newest_two_are_kept(two):
    write_checkpoint(two.parent, 3, {"number": 3})
    assert sorted(path.name for path in two.parent.iterdir()) == [
        "experience-0002.checkpoint",
        "experience-0003.checkpoint",
    ]
    assert read_newest(two.parent)[1] == {"number": 3}


def test_none_at_all(tmp_path):
    assert read_newest(tmp_path) is None
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / ".writing-xyz").write_bytes(b"torn")
    assert read_newest(tmp_path) is None


def test_torn_files_are_left_out_for_the_one_before(two):
    """Cut off in every part of the file, and at many places of the rest."""
    whole = two.read_bytes()
    head = whole.index(b"\n")
    ends = {0, 1, len(MAGIC), head - 1, head, head + 1, head + 30, len(whole) // 2, len(whole) - 1}
    step = max(1, len(whole) // trials(60, 5000))
    ends |= set(range(0, len(whole), step))
    lost = 0
    for end in sorted(ends):
        two.write_bytes(whole[:end])
        with pytest.warns(RuntimeWarning, match=r"experience-0002\.checkpoint is damaged"):
            lost += read_newest(two.parent)[1]["number"] != 1
    report("checkpoint files cut off", len(ends), lost)


def test_flipped_bits_are_found(two):
    whole = two.read_bytes()
    step = max(1, len(whole) // trials(100, 10000))
    places = sorted({*range(0, 110), *range(0, len(whole), step)})
    lost = 0
    for place in places:
        two.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.warns(RuntimeWarning, match="damaged"):
            lost += read_newest(two.parent)[1]["number"] != 1
    report("checkpoint files with a flipped bit", len(places), lost)


def test_all_damaged(two):
    for path in two.parent.iterdir():
        path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="damaged"), pytest.raises(ValueError, match="remove the folder"):
        read_newest(two.parent)


def forge(path, payload, version=FORMAT):
    """A file whose head and checksum are right."""
    digest = hashlib.sha256(str(version).encode() + payload).hexdigest()
    path.write_bytes(f"{MAGIC} {version} {digest}\n".encode() + payload)


def test_another_format_is_named(two, monkeypatch):
    monkeypatch.setattr(module, "FORMAT", 7)
    with pytest.raises(ValueError, match=rf"has format {FORMAT}, this version of avalanche-rewc reads format 7"):
        read_newest(two.parent)


class Evil:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return os.mkdir, (str(self.victim),)


@pytest.mark.parametrize("form", ["torch", "legacy", "pickle"])
def test_code_in_a_file_is_not_executed(form, two, tmp_path):
    victim = tmp_path / "executed"
    if form == "pickle":
        payload = pickle.dumps(Evil(victim))
    else:
        buffer = io.BytesIO()
        torch.save({"state": Evil(victim)}, buffer, _use_new_zipfile_serialization=form == "torch")
        payload = buffer.getvalue()
    forge(two, payload)
    with pytest.raises(ValueError, match=r"experience-0002\.checkpoint holds something that is not data"):
        read_newest(two.parent)
    report(f"checkpoint with code in it, {form}", 1, int(victim.exists()))
    pickle.loads(pickle.dumps(Evil(victim)))
    assert victim.exists(), "the code would have done nothing anyway"
