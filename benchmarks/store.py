"""Result files: one per run, named by a hash of its configuration, written whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from avalanche_rewc.files import check_writable, remove_leftovers, write_whole
from benchmarks.config import SCHEMA, RunConfig
from benchmarks.names import UserError

Result = dict[str, Any]
FAILED = ".failed.json"
PACKED = ".jsonl"


class ResultStore:
    """A folder of results. Any number of processes may read and write it at once."""

    def __init__(self, folder: str | Path) -> None:
        """The folder is made with the first result."""
        self.folder = Path(folder)

    def path(self, key: str, *, failed: bool = False) -> Path:
        """Where the result of a run is, or the record of its failure."""
        return self.folder / f"{key}{FAILED if failed else '.json'}"

    def has(self, config: RunConfig) -> bool:
        """Whether the run is done."""
        return self.path(config.key).exists()

    def has_failed(self, config: RunConfig) -> bool:
        """Whether the run was tried, and failed, and was not done since."""
        return self.path(config.key, failed=True).exists() and not self.has(config)

    def write(self, result: Result) -> Path:
        """Store a result or a failure. A result takes the place of an earlier failure, never the other way round."""
        failed = result["status"] == "failed"
        path = self.path(result["key"], failed=failed)
        data = (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode()
        with self._writing():
            write_whole(path, data)
        if not failed:
            self.path(result["key"], failed=True).unlink(missing_ok=True)
        return path

    def read(self, config: RunConfig) -> Result:
        """The result of a run that is done."""
        return read_result(self.path(config.key))

    def results(self) -> list[Result]:
        """Every result, in the order of their names."""
        names = sorted(p for p in self.folder.glob("*.json") if not p.name.endswith(FAILED))
        return [read_result(path) for path in names]

    def failures(self) -> list[Result]:
        """Every failure."""
        return [read_result(path) for path in sorted(self.folder.glob(f"*{FAILED}"))]

    def sweep_up(self) -> None:
        """Remove what killed processes left half-written."""
        remove_leftovers(self.folder)

    def check(self) -> None:
        """Refuse a folder that cannot be written to before anything is run."""
        with self._writing():
            check_writable(self.folder)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"results cannot be written to {self.folder} ({error.strerror or error}). Those stored before are "
                "safe: put it right and start the same command again, it goes on from there"
            ) from error


def read_result(path: Path) -> Result:
    """One result file; an error says which file is damaged."""
    return _parse(path, _text(path))


def read_packed(path: Path) -> list[Result]:
    """The results in a packed file."""
    return [_parse(path, line) for line in _text(path).splitlines()]


def write_packed(results: Iterable[Result], path: Path) -> None:
    """Many results as one file, a line for each, in the order of their keys: what is kept beside the code."""
    lines = sorted((result["key"], json.dumps(result, ensure_ascii=False)) for result in results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for _, line in lines), encoding="utf-8")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error


def _parse(path: Path, text: str) -> Result:
    try:
        result: Result = json.loads(text)
        schema = result["schema"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    if schema != SCHEMA:
        raise UserError(f"{path} has results of format {schema}, this version reads {SCHEMA}: use another folder")
    return result


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is not a result file ({error!r}): remove it and start the sweep again")


def read_folders(places: Iterable[str | Path]) -> list[Result]:
    """The results of several folders or packed files; a run found twice counts once."""
    found: dict[str, Result] = {}
    for place in map(Path, places):
        if not place.is_dir() and not (place.is_file() and place.suffix == PACKED):
            raise UserError(f"{place} is neither a folder with results nor a {PACKED} file of them")
        for result in ResultStore(place).results() if place.is_dir() else read_packed(place):
            found.setdefault(result["key"], result)
    return list(found.values())
