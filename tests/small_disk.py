"""A disk that is really full, or really read-only, for one process and those it starts: Linux lets a process have
mounts of its own. Where it does not, `Unavailable` is raised and tests are skipped."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
NOBODY = 65534
MS_REC, MS_PRIVATE = 0x4000, 0x40000
UNAVAILABLE = 77
"""Exit code of a process that may not mount anything."""


class Unavailable(SystemExit):
    def __init__(self) -> None:
        super().__init__(UNAVAILABLE)


def mount_small_disk(folder: Path, size: int) -> None:
    """Lay an empty disk of that many bytes over a folder, for this process; it is gone when the process is."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if not hasattr(libc, "unshare") or (libc.unshare(CLONE_NEWNS) and libc.unshare(CLONE_NEWUSER | CLONE_NEWNS)):
        raise Unavailable
    if uid:  # in a namespace of our own we are root if we say so
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise Unavailable
    if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()):
        raise Unavailable


def mounts() -> bool:
    """Whether the commands below can be used here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-r", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return tried.returncode == 0


def on_small_disk(words: list[str], folder: Path, size: int, kept: Path) -> list[str]:
    """A command with a small disk over `folder`, holding what the folder holds; afterwards all of it is in `kept`."""
    script = (
        'cp -a "$1/." "$3" && mount -t tmpfs -o size="$2" none "$1" && cp -a "$3/." "$1" || exit 77; '
        'folder="$1" kept="$3"; shift 3; "$@"; code=$?; rm -rf "$kept"; cp -a "$folder" "$kept"; exit $code'
    )
    return ["unshare", "-r", "-m", "bash", "-c", script, "bash", str(folder), str(size), str(kept), *words]


@contextmanager
def read_only_folder() -> Iterator[Path]:
    """A folder nobody may write to; root, who may write everywhere, is somebody else meanwhile."""
    with tempfile.TemporaryDirectory() as name:  # and not pytest's own, which is for its owner only
        folder, root = Path(name), os.geteuid() == 0
        folder.chmod(0o555)
        if root:
            os.seteuid(NOBODY)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            folder.chmod(0o755)
