"""Archives, well-meant and not."""

import io
import stat
import tarfile
import zipfile

import pytest

from avalanche_rewc.streams.unpack import UnsafeArchive, install, unpack


def tar(path, *members):
    """Members are (name, content) or a TarInfo."""
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def packed_zip(path, *members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def everything_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("make", "suffix"), [(tar, ".tgz"), (packed_zip, ".zip")])
def test_a_plain_archive_is_unpacked(tmp_path, make, suffix):
    archive = make(tmp_path / f"set{suffix}", ("set/a.txt", b"one"), ("set/deep/b.txt", b"two"), ("./set/c", b""))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/set/a.txt").read_bytes() == b"one"
    assert everything_under(tmp_path / "out") == ["set", "set/a.txt", "set/c", "set/deep", "set/deep/b.txt"]


@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "/tmp/evil-from-test", "..\\evil", "C:\\evil"])
@pytest.mark.parametrize(("make", "suffix"), [(tar, ".tgz"), (packed_zip, ".zip")])
def test_paths_out_of_the_folder_are_refused_before_anything_is_written(tmp_path, make, suffix, name):
    archive = make(tmp_path / f"set{suffix}", ("set/a.txt", b"one"), (name, b"evil"))
    (tmp_path / "in").mkdir()
    with pytest.raises(UnsafeArchive, match="leads out of the folder"):
        unpack(archive, tmp_path / "in" / "out")
    assert everything_under(tmp_path / "in") == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "member",
    [
        special("set/link", tarfile.SYMTYPE, "/etc"),
        special("set/link", tarfile.SYMTYPE, "a.txt"),
        special("set/link", tarfile.LNKTYPE, "../../secret"),
        special("set/pipe", tarfile.FIFOTYPE),
        special("set/device", tarfile.CHRTYPE),
    ],
    ids=["link out", "link in", "hard link", "pipe", "device"],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, member):
    archive = tar(tmp_path / "set.tgz", ("set/a.txt", b"one"), member, ("set/link/b", b"through the link"))
    with pytest.raises(UnsafeArchive, match=rf"{member.name}' is a link or a device"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("set/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = packed_zip(tmp_path / "set.zip", ("set/a.txt", b"one"), (link, "/etc"))
    with pytest.raises(UnsafeArchive, match="set/link' is a link"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_archives_say_so(tmp_path):
    for archive in (
        tar(tmp_path / "set.tgz", ("set/a.txt", bytes(range(256)) * 400)),
        packed_zip(tmp_path / "set.zip", ("set/a.txt", bytes(range(256)) * 400)),
    ):
        archive.write_bytes(archive.read_bytes()[:-300])
        with pytest.raises(ValueError, match=rf"{archive.name} is damaged .*fetch it again"):
            unpack(archive, tmp_path / "out")


def nothing_to_say(folder):
    assert folder.is_dir()


def test_a_set_appears_whole_under_its_own_name(tmp_path):
    archive = tar(tmp_path / "birds.tgz", ("birds/a.txt", b"one"), ("attributes.txt", b"beside"))
    install([archive], tmp_path / "data" / "birds", nothing_to_say)
    assert everything_under(tmp_path / "data") == ["birds", "birds/a.txt"]


def test_several_archives_of_parts_make_one_set(tmp_path):
    parts = [packed_zip(tmp_path / f"{n}.zip", (f"{n}/a.txt", b"one")) for n in ("pictures", "splits")]
    install(parts, tmp_path / "data" / "actions", nothing_to_say)
    assert everything_under(tmp_path / "data") == [
        "actions", "actions/pictures", "actions/pictures/a.txt", "actions/splits", "actions/splits/a.txt"
    ]  # fmt: skip


def test_a_set_that_fails_its_check_leaves_nothing(tmp_path):
    def refuse(folder):
        raise ValueError("not whole")

    archive = tar(tmp_path / "birds.tgz", ("birds/a.txt", b"one"))
    with pytest.raises(ValueError, match="not whole"):
        install([archive], tmp_path / "data" / "birds", refuse)
    assert everything_under(tmp_path / "data") == []


def test_a_malicious_archive_leaves_nothing(tmp_path):
    archive = tar(tmp_path / "birds.tgz", ("birds/a.txt", b"one"), ("../../evil", b""))
    with pytest.raises(UnsafeArchive):
        install([archive], tmp_path / "data" / "birds", nothing_to_say)
    assert everything_under(tmp_path / "data") == []


def test_what_is_there_is_never_overwritten(tmp_path):
    (tmp_path / "birds").mkdir()
    with pytest.raises(FileExistsError, match="move it away or remove it"):
        install([], tmp_path / "birds", nothing_to_say)
