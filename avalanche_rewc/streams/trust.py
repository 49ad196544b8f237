"""What a file from elsewhere may name, and how large it may become."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

EXPANSION = 100
"""How many times its own size a packed file may have when it is unpacked. Pictures hardly shrink, text tenfold."""
ALWAYS_FINE = 64 * 2**20
"""Bytes that any packed file may have when it is unpacked."""


def stays_inside(name: str) -> bool:
    """Whether a file's name, joined to a folder, is a name in that folder or below, on any system."""
    parts = PurePosixPath(name.replace("\\", "/"))
    return bool(parts.parts) and not (parts.is_absolute() or ".." in parts.parts or ":" in name or "\0" in name)


def unpacked_limit(path: Path) -> int:
    """The most bytes that the content of a packed file may have; what has more is made to fill disks or memory."""
    return max(ALWAYS_FINE, EXPANSION * path.stat().st_size)
