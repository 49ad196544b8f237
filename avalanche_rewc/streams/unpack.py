"""Unpack an archive into a folder, and nowhere else; make a data set appear all at once."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from avalanche_rewc.streams.trust import stays_inside, unpacked_limit

_ZIP_END = 22  # bytes of the record that ends a zip
MAX_MEMBERS = 200_000
"""Files of one archive; the largest of the paper's sets has 12,000."""


class UnsafeArchive(ValueError):
    """An archive has a member that does not belong into a data set."""


@dataclass(frozen=True)
class Member:
    """A file of an archive."""

    name: str
    size: int
    open: Callable[[], IO[bytes] | None]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a `.zip`, `.tar`, `.tgz` or `.tar.gz` under `folder`.

    Only plain files and folders are accepted: a member with an absolute path or `..`, a link or a device is refused
    and names itself, before anything is written; so is an archive whose files would be a hundred times its own size or
    more, or would be written twice. File modes and owners of the archive are not taken over.

    Raises:
        UnsafeArchive: see above.
        ValueError: the archive is damaged or of another kind.
    """
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                require_all_members(opened)
                _write(_accepted(_zip_members(opened, archive), archive), folder)
        else:
            with tarfile.open(archive) as opened_tar:
                members = _accepted(_tar_members(opened_tar, archive), archive)
                _require_end(opened_tar)
                _write(members, folder)
    except UnsafeArchive:
        raise
    except Exception as error:  # a damaged archive may raise anything
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a place before the start
            raise  # not the archive's fault: no space, no permission
        raise ValueError(f"{archive} is damaged ({error}): remove it and fetch it again") from error


def install(archives: list[Path], folder: Path, check: Callable[[Path], None]) -> None:
    """Unpack archives that together make the data set `folder`, checked before it gets its name.

    They are unpacked beside it, under a name no loader looks for; `check` gets the place where `folder` is, and raises
    if the set is not whole. Then one rename puts it in place. Interrupted or refused, nothing is left.

    Args:
        archives: each holds the set's folder, or (as Stanford-40's) the folders inside it.
        folder: where the set is to be; must not exist.
        check: called with the unpacked set.
    """
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} exists already and is not whole: move it away or remove it, then try again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
        for archive in archives:
            unpack(archive, Path(staging))
        made = Path(staging) / folder.name
        if not made.is_dir():
            made = Path(staging) / f"{folder.name}.whole"
            made.mkdir()
            for part in [entry for entry in Path(staging).iterdir() if entry != made]:
                part.rename(made / part.name)
        check(made)
        made.rename(folder)


def require_all_members(archive: zipfile.ZipFile) -> None:
    """Refuse a zip with another number of members than it says at its end.

    `zipfile` does not compare them, and a flipped byte in one entry of the directory can swallow the next ones.

    Raises:
        zipfile.BadZipFile: the numbers differ.
    """
    assert archive.fp is not None
    archive.fp.seek(0, os.SEEK_END)
    archive.fp.seek(max(0, archive.fp.tell() - _ZIP_END - 2**16))  # a comment may follow, of 64 kB at most
    tail = archive.fp.read()
    end = tail.rfind(b"PK\5\6")
    (announced,) = struct.unpack_from("<H", tail, end + 10)
    found = len(archive.infolist())
    if announced not in (found % 2**16, 2**16 - 1):  # the last: a number that does not fit stands elsewhere
        raise zipfile.BadZipFile(f"it has {found} members and says {announced}")


def _tar_members(archive: tarfile.TarFile, path: Path) -> Iterator[Member]:
    for member in archive:
        if not (member.isfile() or member.isdir()):
            raise UnsafeArchive(f"{path}: {member.name!r} is a link or a device, which no data set needs; refused")
        name = _safe_name(member.name, path, folder=member.isdir())
        if member.isfile():
            yield Member(name, member.size, lambda member=member: archive.extractfile(member))  # type: ignore[misc]


def _require_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive that does not end where its last readable header says.

    `tarfile` takes a damaged header for the end of the archive. Reading on to the end of the file tells them apart, and
    makes gzip compare its checksum.
    """
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    end = archive.fileobj.read(tarfile.BLOCKSIZE)
    if len(end) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it breaks off")
    while end:
        if end.strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {archive.offset}")
        end = archive.fileobj.read(1 << 20)


def _zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[Member]:
    for member in archive.infolist():
        mode = member.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UnsafeArchive(f"{path}: {member.filename!r} is a link or a device, which no data set needs; refused")
        name = _safe_name(member.filename, path, folder=member.is_dir())
        if not member.is_dir():
            yield Member(name, member.file_size, lambda member=member: archive.open(member))  # type: ignore[misc]


def _safe_name(name: str, path: Path, *, folder: bool) -> str:
    relative = PurePosixPath(name.replace("\\", "/"))
    itself = folder and not relative.parts  # "./", which many archives begin with
    if not itself and not stays_inside(name):
        raise UnsafeArchive(f"{path}: {name!r} leads out of the folder it is unpacked to; refused")
    return str(relative)


def _accepted(members: Iterable[Member], path: Path) -> list[Member]:
    """All members, unless together they are too large or too many, or one would be written over another."""
    accepted: dict[str, Member] = {}
    folders: set[str] = set()
    size, limit = 0, unpacked_limit(path)
    for member in members:
        size += member.size
        if size > limit or len(accepted) == MAX_MEMBERS:
            raise UnsafeArchive(
                f"{path}: from {member.name!r} on it would fill more than {limit:,} bytes or {MAX_MEMBERS:,} files, "
                "which no data set of its size does; refused"
            )
        if member.name in accepted:
            raise UnsafeArchive(f"{path}: {member.name!r} comes twice; refused")
        accepted[member.name] = member
        folders.update(str(parent) for parent in PurePosixPath(member.name).parents)
    if clash := folders & accepted.keys():
        raise UnsafeArchive(f"{path}: {min(clash)!r} is a file and a folder; refused")
    return list(accepted.values())


def _write(members: list[Member], folder: Path) -> None:
    for member in members:
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, target.open("wb") as out:  # type: ignore[union-attr]
            shutil.copyfileobj(source, out, 1 << 20)
