"""A folder of checkpoints: the newest two, each a file with a checksum that is loaded without running any code."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from avalanche_rewc.files import remove_leftovers, write_whole

FORMAT = 2
"""Raise it when older files no longer mean the same."""
MAGIC = "avalanche-rewc checkpoint"
NAME = re.compile(r"experience-(\d+)\.checkpoint")
KEPT = 2


class Damaged(Exception):
    """A file that is not whole."""


def write_checkpoint(folder: Path, number: int, content: dict[str, Any]) -> Path:
    """Store the state after `number` experiences; the one before is kept as well, older ones are removed."""
    path = folder / f"experience-{number:04d}.checkpoint"
    write_checked(path, content)
    for old, earlier in _found(folder):
        if old <= number - KEPT:
            with contextlib.suppress(FileNotFoundError):
                earlier.unlink()
    return path


def write_checked(path: Path, content: dict[str, Any]) -> None:
    """Plain data as a file with a checksum, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    write_whole(path, f"{MAGIC} {FORMAT} {_checksum(str(FORMAT), payload)}\n".encode() + payload)


def read_newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole; None if there is none at all.

    Raises:
        ValueError: a file of another format or with something that is not data in it, or all files are damaged.
    """
    remove_leftovers(folder)
    found = sorted(_found(folder), reverse=True)
    for _, path in found:
        try:
            return path, read_checked(path)
        except Damaged as error:
            warnings.warn(f"{path} is damaged ({error}) and is left out", RuntimeWarning, stacklevel=3)
    if found:
        raise ValueError(f"no checkpoint in {folder} is whole: remove the folder to start from the beginning")
    return None


def _found(folder: Path) -> list[tuple[int, Path]]:
    matches = ((NAME.fullmatch(path.name), path) for path in folder.glob("*"))
    return [(int(match[1]), path) for match, path in matches if match]


def read_checked(path: Path) -> dict[str, Any]:
    """The inverse of `write_checked`.

    Raises:
        Damaged: it is not whole.
        ValueError: it has another format, or something that is not data in it.
    """
    head, _, payload = path.read_bytes().partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    if len(words) != 4 or " ".join(words[:2]) != MAGIC:
        raise Damaged("it does not begin as a checkpoint does")
    if _checksum(words[2], payload) != words[3]:
        raise Damaged("its checksum is wrong")
    if words[2] != str(FORMAT):
        raise ValueError(
            f"{path} has format {words[2]}, this version of avalanche-rewc reads format {FORMAT}: go on with the "
            "version that wrote it, or remove the folder to start from the beginning"
        )
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that somebody made may raise anything
        raise ValueError(
            f"{path} holds something that is not data and was not loaded: it was not written by avalanche-rewc"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}: it was not written by avalanche-rewc")
    return content


def _checksum(version: str, payload: bytes) -> str:
    return hashlib.sha256(version.encode() + payload).hexdigest()
