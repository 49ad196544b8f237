"""Text tables as the picture sets ship them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, without any kind of line end, and their numbers from 1."""
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if text := line.strip():
            yield number, text


def read_numbered(path: Path, columns: int) -> dict[int, list[str]]:
    """A table whose rows are a number and `columns` values, by that number.

    Raises:
        ValueError: a row has another form, or a number comes twice; the message names file and line.
    """
    rows: dict[int, list[str]] = {}
    for line, text in read_lines(path):
        first, *values = text.split()
        if len(values) != columns or not first.isdecimal():
            raise ValueError(f"{path}, line {line}: {text!r} is not a number and {columns} value(s)")
        if int(first) in rows:
            raise ValueError(f"{path}, line {line}: number {first} comes twice")
        rows[int(first)] = values
    return rows
