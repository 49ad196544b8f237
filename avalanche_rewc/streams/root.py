"""Where the data sets lie."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "REWC_DATA"


def resolve_data_root(data_root: str | Path | None = None) -> Path:
    """The folder of all data sets: the argument, else the environment variable REWC_DATA, else ./data."""
    if data_root is not None:
        return Path(data_root).expanduser()
    return Path(os.environ.get(VARIABLE) or "data").expanduser()


def missing_files(what: str, missing: list[Path], how: str, *, shown: int = 3) -> FileNotFoundError:
    """The error for files that are not there: it names the first ones and says how to get the set."""
    names = ", ".join(str(path) for path in missing[:shown])
    rest = f" and {len(missing) - shown} more" if len(missing) > shown else ""
    return FileNotFoundError(
        f"{what}: {len(missing)} file(s) missing: {names}{rest}. {how} "
        f"The folder of all data sets is the option data_root, else the variable {VARIABLE}, else ./data."
    )
