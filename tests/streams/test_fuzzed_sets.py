"""Damaged and hostile copies of the sets: an error that names the file, or the right data; nothing outside the root."""

import gzip
import io
import pickle
import random
import shutil
import struct
import tarfile
import warnings
import zipfile

import numpy as np
import pytest

from avalanche_rewc.streams import load_features, unpack
from avalanche_rewc.streams.cifar100 import read_cifar100
from avalanche_rewc.streams.cub200 import TABLES, read_cub200
from avalanche_rewc.streams.mnist import read_idx
from avalanche_rewc.streams.stanford40 import read_stanford40
from avalanche_rewc.streams.unpack import UnsafeArchive
from avalanche_rewc.streams.unpack import unpack as unpack_archive
from tests.real_data import copy_of
from tests.tally import SOAK, tally

ROUNDS = 5000 if SOAK else 150
NAMED = (ValueError, OSError)  # and never a parser's own exception
HOSTILE = ["../../../etc/passwd", "/etc/passwd", "..\\evil.jpg", "images/../../x.jpg", "C:\\x.jpg", "\0.jpg", "a" * 300]


def fuzzer():
    return random.Random(None if SOAK else 0)


def damaged(content: bytes, draw: random.Random, reach: int | None = None) -> tuple[str, bytes]:
    """One to three bytes flipped, a part cut off, or a part doubled; within the first `reach` bytes, if given."""
    how, end = draw.choice(["bytes flipped"] * 4 + ["cut off", "doubled"]), min(len(content), reach or len(content))
    at = draw.randrange(end)
    if how == "cut off":
        return how, content[:at]
    if how == "doubled":
        return how, content[:at] + content[max(0, at - draw.randrange(1, 200)) : at] + content[at:]
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        flipped[draw.randrange(end)] ^= draw.randrange(1, 256)
    return how, bytes(flipped)


def outcome(read, *names):
    """What `read` returns, or None if it was refused by an error that has one of the names in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd headers
            return read()
    except NAMED as error:
        text = str(error)
    assert any(name in text for name in names), text
    return None


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def hostile_line(text: str, draw: random.Random) -> str:
    """A table in which one word is a name that leads elsewhere."""
    lines = text.splitlines()
    number = draw.randrange(1, len(lines))
    words = lines[number].split()
    words[draw.randrange(len(words))] = draw.choice(HOSTILE)
    return "\n".join([*lines[:number], " ".join(words), *lines[number + 1 :]])


def tampered(path, draw):
    """Do something to a file; returns what."""
    how = draw.choice(
        ["damaged"] * 4 + ["removed", "emptied", "hostile name", "folder", "looping link", "dangling link"]
    )
    content = path.read_bytes()
    if how == "damaged":
        how, content = damaged(content, draw)
        path.write_bytes(content)
        return how
    if how == "hostile name" and path.suffix == ".txt":
        path.write_text(hostile_line(content.decode(), draw))
        return how
    if how == "emptied":
        path.write_bytes(b"")
        return how
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "looping link":
        path.symlink_to(path)
    elif how == "dangling link":
        path.symlink_to(path.with_name("gone"))
    else:
        how = "removed"
    return how


def fuzz(name, copy, read, files, rounds, check):
    """Tamper with one file after the other, read, and put it back."""
    draw = fuzzer()
    outside = everything(copy.parent)
    with tally(name) as counts:
        for _ in range(rounds):
            path = draw.choice(files)
            content = path.read_bytes()
            counts.add(tampered(path, draw))
            found = outcome(lambda path=path: read(path), path.name, str(copy))
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            if found is not None:
                counts.details["of these harmless or not to be told"] = (
                    counts.details.get("of these harmless or not to be told", 0) + 1
                )
                check(found)
    assert everything(copy.parent) == outside


def inside(pictures, copy):
    assert all(path.resolve().is_relative_to(copy.resolve()) for path in pictures.pictures.paths)
    assert len(set(pictures.files)) == len(pictures.files) == len(pictures.train) == len(pictures.pictures.targets)


def test_tables_of_cub200(tmp_path):
    copy = copy_of("mini/CUB_200_2011", tmp_path)

    def check(birds):
        inside(birds, copy)
        for file, label in zip(birds.files, birds.pictures.targets.tolist(), strict=True):
            assert file.split("/")[1] == birds.class_names[label]
        assert all(np.isfinite(box).all() for box in birds.pictures.boxes)

    files = [copy / name for name in TABLES]
    fuzz("damaged tables of CUB-200", copy, lambda _: read_cub200(copy), files, ROUNDS, check)
    check(read_cub200(copy))


def test_tables_of_stanford40(tmp_path):
    copy = copy_of("mini/Stanford40", tmp_path)

    def check(actions):
        inside(actions, copy)
        for file, label in zip(actions.files, actions.pictures.targets.tolist(), strict=True):
            assert file.startswith(f"JPEGImages/{actions.class_names[label]}_")

    used = sorted(p for p in (copy / "ImageSplits").iterdir() if p.name not in ("train.txt", "test.txt"))
    fuzz("damaged tables of Stanford-40", copy, lambda _: read_stanford40(copy), used, ROUNDS, check)
    check(read_stanford40(copy))


def test_pictures(tmp_path):
    copy = copy_of("mini/Stanford40", tmp_path)
    pictures = read_stanford40(copy).pictures

    def check(decoded):
        assert decoded[0].mode == "RGB"

    files = sorted(pictures.paths, key=lambda path: path.stat().st_size)[:40]
    fuzz("damaged pictures", copy, lambda path: pictures[pictures.paths.index(path)], files, ROUNDS, check)


def test_names_that_begin_well_and_lead_out(tmp_path):
    """The picture they lead to is there, and is not read."""
    birds, actions = copy_of("mini/CUB_200_2011", tmp_path), copy_of("mini/Stanford40", tmp_path)
    shutil.copy(read_stanford40(actions).pictures.paths[0], tmp_path / "outside.jpg")
    table = birds / "images.txt"
    first, rest = table.read_text().split("\n", 1)
    table.write_text(f"{first.split('/')[0]}/../../../outside.jpg\n{rest}")
    with pytest.raises(ValueError, match=r"CUB-200.*/\.\./\.\./\.\./outside\.jpg', which leads out of"):
        read_cub200(birds)
    (actions / "JPEGImages" / "reading_").mkdir()
    table = actions / "ImageSplits" / "reading_test.txt"
    table.write_text(f"{table.read_text()}reading_/../../../outside.jpg\n")
    with pytest.raises(ValueError, match=r"Stanford-40.*reading_/\.\./\.\./\.\./outside\.jpg', which leads out of"):
        read_stanford40(actions)


def test_a_picture_may_be_a_link_of_the_users_own(tmp_path):
    copy = copy_of("mini/Stanford40", tmp_path)
    path = read_stanford40(copy).pictures.paths[0]
    shutil.move(path, tmp_path / "elsewhere.jpg")
    path.symlink_to(tmp_path / "elsewhere.jpg")
    assert read_stanford40(copy).pictures[0][0].mode == "RGB"


def test_a_picture_is_only_ever_a_picture(tmp_path):
    """Pillow would hand a PostScript file to another program."""
    copy = copy_of("mini/Stanford40", tmp_path)
    pictures = read_stanford40(copy).pictures
    pictures.paths[0].write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    with pytest.raises(OSError, match=f"{pictures.paths[0].name} cannot be decoded"):
        pictures[0]


NOISE = random.Random(1)
CONTENT = {f"set/{folder}/{i}.txt": NOISE.randbytes(400) + bytes(300) for folder in "ab" for i in range(3)}


def packed(path):
    """CONTENT as an archive, the same to the byte whenever it is made."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in CONTENT.items():
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return path
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in CONTENT.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=0) if path.suffix == ".tgz" else plain.getvalue())
    return path


def test_an_index_that_points_before_the_beginning_is_the_archive_s_fault(tmp_path):
    archive = packed(tmp_path / "set.zip")
    content = bytearray(archive.read_bytes())
    end = content.rindex(b"PK\x05\x06")
    content[end + 16 : end + 20] = (2**31).to_bytes(4, "little")  # where the index begins
    archive.write_bytes(content)
    assert outcome(lambda: unpack_archive(archive, tmp_path / "out") or True, "set.zip is damaged") is None


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_archives(tmp_path, suffix):
    """Both kinds have checksums: what is unpacked at all is what was packed, under the same names."""
    draw = fuzzer()
    (tmp_path / "in").mkdir()
    archive = packed(tmp_path / f"set{suffix}")
    whole = archive.read_bytes()
    with tally(f"damaged archives, {suffix}") as counts:
        for _ in range(2 * ROUNDS):
            how, content = damaged(whole, draw)
            counts.add(how)
            archive.write_bytes(content)
            target = tmp_path / "in" / "out"
            if outcome(lambda target=target: unpack_archive(archive, target) or True, archive.name):
                found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
                assert found == CONTENT
            shutil.rmtree(target, ignore_errors=True)
            assert everything(tmp_path) == ["in", archive.name]


def test_a_damaged_header_in_a_tar_is_not_its_end(tmp_path):
    """`tarfile` stops there without a word, and half a set would be unpacked."""
    archive = packed(tmp_path / "set.tar")
    content = bytearray(archive.read_bytes())
    content[content.index(b"set/b/1.txt") + 110] ^= 0x55
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.tar is damaged \(no header at byte"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_zip_that_lost_members_is_damaged(tmp_path):
    """A longer comment in one entry of its directory swallows the entries behind it."""
    archive = packed(tmp_path / "set.zip")
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\1\2") + 32] = 57  # as long as an entry
    archive.write_bytes(content)
    assert len(zipfile.ZipFile(archive).namelist()) < len(CONTENT)
    with pytest.raises(ValueError, match=r"set\.zip is damaged \(it has \d members and says 6\)"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def zip_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("set/a", b"a")
        archive.writestr("set/b", bytes(80 * 2**20))
    return path


def tar_bomb(path):
    """Announces what it does not even have."""
    info = tarfile.TarInfo("set/huge")
    info.size = 2**40
    path.write_bytes(gzip.compress(info.tobuf() + bytes(4096)))
    return path


def test_bombs(tmp_path, monkeypatch):
    with tally("archives that would fill the disk or memory") as counts:
        for make, name in ((zip_bomb, "set.zip"), (tar_bomb, "set.tgz")):
            counts.add(name)
            with pytest.raises(UnsafeArchive, match=rf"{name}: from 'set/(b|huge)' on it would fill more than"):
                unpack_archive(make(tmp_path / name), tmp_path / "out")
            assert not (tmp_path / "out").exists()
        counts.add("idx")
        (tmp_path / "idx.gz").write_bytes(gzip.compress(bytes(80 * 2**20), 1))
        with pytest.raises(ValueError, match=r"idx\.gz has more than"):
            read_idx(tmp_path / "idx.gz")
        counts.add("features")
        np.savez_compressed(tmp_path / "features.npz", features=np.zeros((40 * 2**20, 1), np.float16))
        with pytest.raises(ValueError, match=r"features\.npz cannot be read .* claim to be"):
            load_features(tmp_path / "features.npz")
        counts.add("many files")
        monkeypatch.setattr(unpack, "MAX_MEMBERS", 5)
        with pytest.raises(UnsafeArchive, match="or 5 files"):
            unpack_archive(packed(tmp_path / "many.zip"), tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["set/a", "set/a"], "'set/a' comes twice"),
        (["set/a", "./set/a"], "'set/a' comes twice"),
        (["set/a", "set/a/b"], "'set/a' is a file and a folder"),
        (["."], "leads out"),
        ([".."], "leads out"),
        (["set/.."], "leads out"),
    ],
)
def test_files_over_files(tmp_path, names, message):
    path = tmp_path / "set.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(UnsafeArchive, match=message):
        unpack_archive(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_feature_files(tmp_path):
    path = tmp_path / "features.npz"
    arrays = {
        "features": np.random.default_rng(0).normal(size=(12, 5)).astype(np.float16),
        "labels": np.arange(12) % 4,
        "train": np.arange(12) < 8,
        "files": np.array([f"images/{i % 4}.bird/{i}.jpg" for i in range(12)]),
        "metadata": np.array('{"format": 1, "class_names": ["a", "b", "c", "d"]}'),
    }
    np.savez(path, **arrays)
    whole, draw = path.read_bytes(), fuzzer()
    with tally("damaged feature files") as counts:
        for _ in range(2 * ROUNDS):
            how, content = damaged(whole, draw)
            counts.add(how)
            path.write_bytes(content)
            if (found := outcome(lambda: load_features(path), path.name)) is not None:
                assert np.array_equal(found.features.numpy(), arrays["features"])
                assert found.labels.tolist() == arrays["labels"].tolist()
                assert found.train.tolist() == arrays["train"].tolist()
    for name, wrong in {
        "labels": np.array(["bird"] * 12),
        "train": np.zeros(12, np.int8),
        "features": np.array(1.0),
        "labels ": None,
    }.items():
        changed = {**arrays, name.strip(): -arrays["labels"] if wrong is None else wrong}
        np.savez(path, **changed)
        assert outcome(lambda: load_features(path), path.name) is None
    np.save(path.with_suffix(".npy"), arrays["features"])
    path.with_suffix(".npy").rename(path)
    assert outcome(lambda: load_features(path), path.name) is None


def test_idx_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    plain = struct.pack(">HBBIII", 0, 8, 3, *pixels.shape) + pixels.tobytes()
    draw = fuzzer()
    with tally("damaged idx files") as counts:
        for name, whole, reach in (("a-idx", plain, 16), ("a-idx.gz", gzip.compress(plain, mtime=0), None)):
            path = tmp_path / name
            for _ in range(ROUNDS):
                how, content = damaged(whole, draw, reach)
                counts.add(how)
                path.write_bytes(content)
                if (found := outcome(lambda path=path: read_idx(path), name)) is not None:
                    assert found.numel() == pixels.size  # the shape is compared with the rest of the set
                    assert np.array_equal(found.numpy().ravel(), pixels.ravel())


def test_pickles_of_cifar100(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    for part in ("train", "test"):
        (folder / part).write_bytes(pickle.dumps({"data": pixels, "fine_labels": [0, 1, 2, 99]}, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(c) for c in range(100)]}, protocol=2))
    train, _, _ = read_cifar100(folder)
    assert np.array_equal(train.inputs.numpy().reshape(4, 3072), pixels)
    draw = fuzzer()
    with tally("damaged pickles of CIFAR-100") as counts:
        for _ in range(2 * ROUNDS):
            path = folder / draw.choice(["train", "test", "meta"])
            whole = path.read_bytes()
            how, content = damaged(whole, draw, 400)
            counts.add(how)
            path.write_bytes(content)
            found = outcome(lambda: read_cifar100(folder), str(folder))
            path.write_bytes(whole)
            if found is not None:
                assert all(part.inputs.shape[1:] == (3, 32, 32) for part in found[:2])
                assert all(0 <= int(part.targets.min()) <= int(part.targets.max()) < 100 for part in found[:2])
    assert everything(tmp_path) == ["cifar-100-python", *(f"cifar-100-python/{p}" for p in ("meta", "test", "train"))]
