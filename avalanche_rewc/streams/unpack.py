"""Unpack an archive into a folder, and nowhere else; make a data set appear all at once."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

Member = tuple[str, Callable[[], IO[bytes] | None]]


class UnsafeArchive(ValueError):
    """An archive has a member that does not belong into a data set."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a `.zip`, `.tar`, `.tgz` or `.tar.gz` under `folder`.

    Only plain files and folders are accepted: a member with an absolute path or `..`, a link or a device is refused
    and names itself, before anything is written. File modes and owners of the archive are not taken over.

    Raises:
        UnsafeArchive: see above.
        ValueError: the archive is damaged or of another kind.
    """
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                _write(list(_zip_members(opened, archive)), folder)
        else:
            with tarfile.open(archive) as opened_tar:
                _write(list(_tar_members(opened_tar, archive)), folder)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
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
    if folder.exists():
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


def _tar_members(archive: tarfile.TarFile, path: Path) -> Iterator[Member]:
    for member in archive:
        if not (member.isfile() or member.isdir()):
            raise UnsafeArchive(f"{path}: {member.name!r} is a link or a device, which no data set needs; refused")
        name = _safe_name(member.name, path)
        if member.isfile():
            yield name, lambda member=member: archive.extractfile(member)  # type: ignore[misc]


def _zip_members(archive: zipfile.ZipFile, path: Path) -> Iterator[Member]:
    for member in archive.infolist():
        mode = member.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise UnsafeArchive(f"{path}: {member.filename!r} is a link or a device, which no data set needs; refused")
        name = _safe_name(member.filename, path)
        if not member.is_dir():
            yield name, lambda member=member: archive.open(member)  # type: ignore[misc]


def _safe_name(name: str, path: Path) -> str:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in name or "\0" in name:
        raise UnsafeArchive(f"{path}: {name!r} leads out of the folder it is unpacked to; refused")
    return str(parts)


def _write(members: list[Member], folder: Path) -> None:
    for name, opened in members:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with opened() as source, target.open("wb") as out:  # type: ignore[union-attr]
            shutil.copyfileobj(source, out, 1 << 20)
