"""Fetch an archive: resumed where it stopped, and only under its own name once it is whole and checked."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

LOG = logging.getLogger(__name__)
CHUNK = 1 << 20
TIMEOUT_SECONDS = 60
ATTEMPTS = 4


@dataclass(frozen=True)
class Archive:
    """A public file, with what is known about it: size in bytes and md5, where they were published."""

    url: str
    size: int | None = None
    md5: str | None = None


class DownloadError(OSError):
    """A file could not be fetched, or what came is not what was published."""


def fetch(archive: Archive, path: Path) -> Path:
    """Download to `path`, unless it is there already and passes the check.

    What has arrived is kept in `<path>.part` with the server's mark of its version in `<path>.part.tag`; a later call,
    also after the process was killed, asks only for the rest. If the server's file has changed in between, or the
    server cannot resume, it starts again. `path` itself appears by one rename, after size and md5 have been checked.

    Raises:
        DownloadError: the server refused, the transfer broke off (run again to go on), or the file is not as published
            (what came is removed, so that the next run starts afresh).
    """
    if path.is_file():
        if (wrong := _difference(path, archive)) is None:
            return path
        LOG.warning("%s: %s; fetching it again", path, wrong)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    tag = path.with_name(path.name + ".part.tag")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _transfer(archive, part, tag)
            break
        except urllib.error.HTTPError as error:
            if error.code == 416 and _size(part):  # no such range: what is there is not the beginning of the file
                part.unlink()
                continue
            raise DownloadError(f"{archive.url}: the server answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS:
                raise DownloadError(
                    f"{archive.url}: the transfer broke off ({error}). Run it again to go on after the "
                    f"{_size(part):,} bytes that have arrived"
                ) from error
            LOG.info("%s: %s; going on", archive.url, error)
    if (wrong := _difference(part, archive)) is not None:
        part.unlink(missing_ok=True)
        tag.unlink(missing_ok=True)
        raise DownloadError(f"{archive.url}: {wrong}. It was removed; run again, or fetch it by hand to {path}")
    tag.unlink(missing_ok=True)
    os.replace(part, path)
    return path


def _transfer(archive: Archive, part: Path, tag: Path) -> None:
    """One request: append what is missing to `part`, or begin it anew where the server cannot go on."""
    have = _size(part)
    if archive.size is not None and have == archive.size:
        return
    version = tag.read_text() if tag.is_file() else ""
    request = urllib.request.Request(archive.url, headers={"User-Agent": "avalanche-rewc"})
    if 0 < have < (archive.size or have + 1) and version:
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", version)  # another version than ours is then sent whole
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        start = have if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length is not None else archive.size
        if not goes_on:
            part.unlink(missing_ok=True)  # before the mark: a mark never stands beside another version's bytes
            tag.write_text(answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
        _write(answer, part, start, total, Path(archive.url).name)
    if total is not None and _size(part) < total:
        raise OSError(f"{_size(part):,} of {total:,} bytes came")


def _write(answer: Any, part: Path, start: int, total: int | None, name: str) -> None:
    progress = tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=name, leave=False)
    with part.open("ab" if start else "wb") as out, progress:
        while chunk := answer.read(CHUNK):
            out.write(chunk)
            progress.update(len(chunk))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _difference(path: Path, archive: Archive) -> str | None:
    """How the file differs from what was published; None if it does not."""
    size = _size(path)
    if archive.size is not None and size != archive.size:
        return f"it has {size:,} bytes, published are {archive.size:,}"
    if archive.md5 is not None:
        digest = hashlib.md5(usedforsecurity=False)
        with path.open("rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != archive.md5:
            return f"its md5 is {digest.hexdigest()}, published is {archive.md5}"
    return None
