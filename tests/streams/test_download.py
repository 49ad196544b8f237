"""Downloads from a real server on this machine: resumed, checked, and never half-made."""

import hashlib
import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest

from avalanche_rewc.streams import SplitCIFAR100, SplitCUB200, SplitStanford40, cifar100, cub200, mnist, stanford40
from avalanche_rewc.streams.download import ATTEMPTS, Archive, DownloadError, fetch
from avalanche_rewc.streams.mnist import DisjointMNIST
from tests.real_data import real
from tests.streams.server import Server

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def server():
    with Server() as running:
        running.files["set.tgz"] = CONTENT
        yield running


@pytest.fixture
def archive(server):
    return Archive(server.url("set.tgz"), len(CONTENT), hashlib.md5(CONTENT).hexdigest())


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once(server, archive, tmp_path):
    path = tmp_path / "deep" / "set.tgz"
    assert fetch(archive, path) == path
    assert fetch(archive, path).read_bytes() == CONTENT
    assert server.requests == [("set.tgz", None)]
    assert leftovers(path.parent) == ["set.tgz"]


def test_a_broken_transfer_goes_on_by_itself(server, archive, tmp_path):
    server.cut = 100_000
    fetch(archive, tmp_path / "set.tgz")
    assert [wanted for _, wanted in server.requests] == [None, "bytes=100000-", "bytes=200000-"]
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT


def test_a_later_run_asks_only_for_the_rest(server, archive, tmp_path):
    server.cut = 1000
    with pytest.raises(DownloadError, match=rf"broke off .*Run it again to go on after the {ATTEMPTS},000 bytes"):
        fetch(archive, tmp_path / "set.tgz")
    assert leftovers(tmp_path) == ["set.tgz.part", "set.tgz.part.tag"]
    server.cut = None
    server.requests.clear()
    fetch(archive, tmp_path / "set.tgz")
    assert server.requests == [("set.tgz", f"bytes={1000 * ATTEMPTS}-")]
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT
    assert leftovers(tmp_path) == ["set.tgz"]


def interrupted(server, archive, tmp_path):
    server.cut = 1000
    with pytest.raises(DownloadError):
        fetch(archive, tmp_path / "set.tgz")
    server.cut = None
    server.requests.clear()


def test_a_file_that_changed_in_between_starts_again(server, archive, tmp_path):
    interrupted(server, Archive(archive.url), tmp_path)
    server.files["set.tgz"], server.version = CONTENT[::-1], '"two"'
    fetch(Archive(archive.url, len(CONTENT), hashlib.md5(CONTENT[::-1]).hexdigest()), tmp_path / "set.tgz")
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("vice", ["no ranges", "no version"])
def test_a_server_that_cannot_resume_starts_again(server, archive, tmp_path, vice):
    server.ranges, server.version = vice != "no ranges", None if vice == "no version" else server.version
    interrupted(server, archive, tmp_path)
    fetch(archive, tmp_path / "set.tgz")
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT


def test_a_transfer_cut_off_without_a_published_size_does_not_pass_for_whole(server, tmp_path):
    server.cut = 1000
    with pytest.raises(DownloadError, match="broke off"):
        fetch(Archive(server.url("set.tgz")), tmp_path / "set.tgz")
    assert not (tmp_path / "set.tgz").exists()


@pytest.mark.parametrize(
    ("size", "md5", "message"),
    [
        (len(CONTENT), "0" * 32, "its md5 is .*, published is 000"),
        (len(CONTENT) + 1, None, "256,000 bytes, published are 256,001"),
    ],
)
def test_what_is_not_as_published_is_removed(server, tmp_path, size, md5, message):
    with pytest.raises(DownloadError, match=message):
        fetch(Archive(server.url("set.tgz"), size, md5), tmp_path / "set.tgz")
    assert leftovers(tmp_path) == []


def test_too_much_left_by_an_earlier_run_starts_again(server, archive, tmp_path):
    (tmp_path / "set.tgz.part").write_bytes(bytes(len(CONTENT) + 5))
    (tmp_path / "set.tgz.part.tag").write_text('"one"')
    fetch(archive, tmp_path / "set.tgz")
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT


def test_a_whole_part_of_a_file_of_unknown_size_starts_again(server, tmp_path):
    (tmp_path / "set.tgz.part").write_bytes(CONTENT)
    (tmp_path / "set.tgz.part.tag").write_text('"one"')
    fetch(Archive(server.url("set.tgz")), tmp_path / "set.tgz")
    assert [wanted for _, wanted in server.requests] == ["bytes=256000-", None]
    assert (tmp_path / "set.tgz").read_bytes() == CONTENT


def test_a_damaged_file_under_the_right_name_is_fetched_again(server, archive, tmp_path):
    (tmp_path / "set.tgz").write_bytes(b"half")
    assert fetch(archive, tmp_path / "set.tgz").read_bytes() == CONTENT


def test_a_file_that_is_not_there(server, tmp_path):
    with pytest.raises(DownloadError, match="answers 404"):
        fetch(Archive(server.url("none.tgz")), tmp_path / "none.tgz")


def tgz_of(folder, **extra):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, folder.name)
        for name, content in extra.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def offer(server, monkeypatch, name, content, module=cub200, size=None):
    server.files[name] = content
    archive = Archive(server.url(name), size or len(content), hashlib.md5(content).hexdigest())
    monkeypatch.setattr(module, "ARCHIVE", archive)


MINI = {"training pictures": 96, "test pictures": 64, "classes": 8}


def test_cub200_from_its_archive(server, tmp_path, monkeypatch):
    offer(server, monkeypatch, "CUB_200_2011.tgz", tgz_of(real("mini/CUB_200_2011"), **{"attributes.txt": b"beside"}))
    monkeypatch.setattr(cub200, "CANONICAL", MINI)
    benchmark = SplitCUB200(2, data_root=tmp_path, download=True)
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 96
    assert leftovers(tmp_path) == ["CUB_200_2011", "CUB_200_2011.tgz"]
    SplitCUB200(2, data_root=tmp_path, download=True)
    assert len(server.requests) == 1


def test_cub200_of_the_wrong_size_is_not_installed(server, tmp_path, monkeypatch):
    offer(server, monkeypatch, "CUB_200_2011.tgz", tgz_of(real("mini/CUB_200_2011")))
    with pytest.raises(ValueError, match=r"the unpacked CUB-200 has .*96.*published are .*5994"):
        SplitCUB200(2, data_root=tmp_path, download=True)
    assert leftovers(tmp_path) == ["CUB_200_2011.tgz"]


def test_a_malicious_cub200_archive_is_not_installed(server, tmp_path, monkeypatch):
    offer(server, monkeypatch, "CUB_200_2011.tgz", tgz_of(real("mini/CUB_200_2011"), **{"../evil": b"evil"}))
    with pytest.raises(ValueError, match="leads out of the folder"):
        SplitCUB200(2, data_root=tmp_path / "data", download=True)
    assert leftovers(tmp_path) == ["data"]
    assert leftovers(tmp_path / "data") == ["CUB_200_2011.tgz"]


def zip_of(folder):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
    return packed.getvalue()


def test_stanford40_from_its_archives(server, tmp_path, monkeypatch):
    for part in ("JPEGImages", "ImageSplits", "XMLAnnotations"):
        server.files[f"Stanford40_{part}.zip"] = zip_of(real("mini/Stanford40") / part)
    archives = [Archive(server.url(name)) for name in server.files if name.startswith("Stanford40")]
    monkeypatch.setattr(stanford40, "ARCHIVES", archives)
    with pytest.raises(ValueError, match=r"the unpacked Stanford-40 has .*96.*published are .*4000.*5532"):
        SplitStanford40(2, data_root=tmp_path, download=True, canonical=False)
    assert not (tmp_path / "Stanford40").exists()
    monkeypatch.setattr(stanford40, "CANONICAL", MINI)
    benchmark = SplitStanford40(2, data_root=tmp_path, download=True)
    assert sum(len(e.dataset) for e in benchmark.test_stream) == 64
    assert len(server.requests) == 3


def test_mnist_from_its_archives(server, tmp_path, monkeypatch):
    archives = {}
    for name, archive in mnist.ARCHIVES.items():
        server.files[f"{name}.gz"] = (real("MNIST/raw") / f"{name}.gz").read_bytes()
        archives[name] = Archive(server.url(f"{name}.gz"), archive.size, archive.md5)
    monkeypatch.setattr(mnist, "ARCHIVES", archives)
    benchmark = DisjointMNIST(2, data_root=tmp_path, download=True)
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 60_000
    assert len(server.requests) == 4


def test_cifar100_from_its_archive(server, tmp_path, monkeypatch):
    source = tmp_path / "source" / "cifar-100-python"
    source.mkdir(parents=True)
    for part in ("train", "test"):
        content = {"data": np.zeros((200, 3072), np.uint8), "fine_labels": list(range(100)) * 2}
        (source / part).write_bytes(pickle.dumps(content, protocol=2))
    (source / "meta").write_bytes(pickle.dumps({"fine_label_names": [str(c) for c in range(100)]}, protocol=2))
    offer(server, monkeypatch, "cifar-100-python.tar.gz", tgz_of(source), module=cifar100)
    with pytest.raises(ValueError, match=r"the unpacked CIFAR-100 has .*200.*published are .*50000"):
        SplitCIFAR100(2, data_root=tmp_path / "data", download=True)
    assert leftovers(tmp_path / "data") == ["cifar-100-python.tar.gz"]
    monkeypatch.setattr(cifar100, "CANONICAL", {"training pictures": 200, "test pictures": 200})
    benchmark = SplitCIFAR100(2, data_root=tmp_path / "data", download=True)
    assert [len(e.dataset) for e in benchmark.train_stream] == [100, 100]
    assert leftovers(tmp_path / "data") == ["cifar-100-python", "cifar-100-python.tar.gz"]
