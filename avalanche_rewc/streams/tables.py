"""Text tables as the picture sets ship them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, without any kind of line end, and their numbers from 1.

    Raises:
        ValueError: the file is not text.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged, it is not text ({error}): fetch it again") from error
    for number, line in enumerate(content.splitlines(), 1):
        if text := line.strip():
            yield number, text


def is_number(text: str) -> bool:
    """Whether a text is a whole number of a size that a table can have."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def read_numbered(path: Path, columns: int) -> dict[int, list[str]]:
    """A table whose rows are a number and `columns` values, by that number.

    Raises:
        ValueError: a row has another form, or a number comes twice; the message names file and line.
    """
    rows: dict[int, list[str]] = {}
    for line, text in read_lines(path):
        first, *values = text.split()
        if len(values) != columns or not is_number(first):
            raise ValueError(f"{path}, line {line}: {text!r} is not a number and {columns} value(s)")
        if int(first) in rows:
            raise ValueError(f"{path}, line {line}: number {first} comes twice")
        rows[int(first)] = values
    return rows
