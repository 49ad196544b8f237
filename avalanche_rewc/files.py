"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from pathlib import Path

TEMPORARY = ".writing-"
STALE_SECONDS = 600.0
"""A half-written file this old was left by a process that was killed."""


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` into a file, in place of what it held before. Its folder is made if it is not there.

    Readers, and whoever comes after a crash, see all of the old content or all of the new one: the data are on disk
    under another name before they take the file's name, and so is the folder's entry before this returns. On an error,
    such as a full disk, the old content stays and nothing half-written is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    # and not mkstemp, which lets nobody else read: who may is for the user's umask to say
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def check_writable(folder: Path) -> None:
    """Make the folder and a file in it, so that a wrong place is found before hours of work and not after.

    Raises:
        OSError: it cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix=TEMPORARY, dir=folder)
    os.close(descriptor)
    os.unlink(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written; what is younger may be under way."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and needs no such thing
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
