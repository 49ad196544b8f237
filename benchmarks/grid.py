"""Sweep files: a grid of runs, declared in TOML (or JSON).

title = "Disjoint MNIST"
seeds = [0, 1, 2]
select = ["validation"]        # "validation": choose strengths on held-out samples; "test": the paper's way
select_seeds = [0, 1]          # seeds of the whole grid; the others are run with the chosen strengths only
validation = 0.1               # share of the training samples to hold out

[settings]                     # of every run, see `benchmarks.config.RunConfig`
stream = "mnist"
n_experiences = 2

[[grid]]                       # any number of them
methods = ["rewc", "rewc-none"]
strengths = [1, 10, 100]
[grid.vary]                    # further axes: settings, or options of the methods
"options.samples_per_class" = [5, 40]

[[grid]]
methods = ["naive", "joint"]
settings = { epochs = 10 }     # for this grid only
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.names import UserError, unknown
from benchmarks.plan import make_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHIPPED = Path(__file__).with_name("sweeps")
SELECT = ("validation", "test")
TOP = ("title", "description", "seeds", "select", "select_seeds", "validation", "settings", "grid")
GRID = ("methods", "strengths", "settings", "options", "vary")
AXES = ("model", "stream_options", "options")
"""Settings that are tables themselves: `vary` reaches into them with a dot."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says. `runs` are those of the whole grid: all strengths, all seeds."""

    name: str
    title: str
    description: str
    select: tuple[str, ...]
    select_seeds: tuple[int, ...]
    runs: tuple[RunConfig, ...]


def shipped_sweeps() -> list[str]:
    """Names of the sweep files that come with the benchmarks."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load_sweep(name: str, *, seeds: Sequence[int] | None = None) -> Sweep:
    """A sweep by file or by the name of a shipped one.

    Args:
        name: of the file, or of one in `benchmarks/sweeps`.
        seeds: instead of those in the file.
    """
    path = Path(name)
    if not path.is_file():
        if path.suffix in (".toml", ".json"):
            raise UserError(f"there is no sweep file {name}")
        path = SHIPPED / f"{name}.toml"
        if not path.is_file():
            raise unknown("sweep", name, shipped_sweeps(), " (or give the path of a .toml file)")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return parse_sweep(path.stem, content, seeds)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: {error}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def parse_value(text: str) -> Any:
    """A value as a sweep file would have it; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_sweep(name: str, content: Mapping[str, Any], seeds: Sequence[int] | None = None) -> Sweep:
    """A sweep from the content of a file."""
    _check_names(content, TOP, "sweep")
    for key, kind in (("select", list), ("select_seeds", list), ("seeds", list), ("settings", dict), ("grid", list)):
        _check_kind(content, key, kind)
    _check_reserved(content.get("settings", {}), "settings")
    select = tuple(content.get("select", ["validation"]))
    if not select:
        raise UserError(f"select is empty; choose among {', '.join(map(repr, SELECT))}")
    for way in select:
        if way not in SELECT:
            raise unknown("way to select", way, SELECT)
    chosen_seeds = list(seeds if seeds is not None else content.get("seeds", [0]))
    if (
        not chosen_seeds
        or not all(isinstance(s, int) for s in chosen_seeds)
        or len(set(chosen_seeds)) < len(chosen_seeds)
    ):
        raise UserError(f"seeds={chosen_seeds} must be different whole numbers, at least one")
    if not content.get("grid"):
        raise UserError("there is no [[grid]], so nothing to run")
    select_seeds = [seed for seed in content.get("select_seeds", chosen_seeds) if seed in chosen_seeds] or chosen_seeds
    # Without a choice on validation data nothing needs to be held out.
    share = content.get("validation", 0.1) if "validation" in select else 0.0
    settings = {**content.get("settings", {}), "validation": share}
    runs: dict[str, RunConfig] = {}
    for grid in content["grid"]:
        for config in _expand(grid, settings, chosen_seeds):
            runs.setdefault(config.key, config)
    return Sweep(
        name,
        content.get("title", name),
        content.get("description", ""),
        select,
        tuple(select_seeds),
        tuple(runs.values()),
    )


def _expand(grid: Mapping[str, Any], common: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[RunConfig]:
    _check_names(grid, GRID, "[[grid]]")
    for key, kind in (("methods", list), ("strengths", list), ("settings", dict), ("options", dict), ("vary", dict)):
        _check_kind(grid, key, kind)
    _check_reserved({**grid.get("settings", {}), **grid.get("vary", {})}, "settings or vary")
    for strength in grid.get("strengths", []):
        if isinstance(strength, bool) or not isinstance(strength, int | float):
            raise UserError(f"strengths: {strength!r} is not a number")
    if not grid.get("methods"):
        raise UserError("a [[grid]] needs methods")
    vary = grid.get("vary", {})
    for name, values in vary.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"vary: {name!r} needs a list of values")
    for values in itertools.product(*vary.values()):
        settings: dict[str, Any] = {**common, **grid.get("settings", {})}
        for table in AXES:
            settings[table] = {**common.get(table, {}), **grid.get("settings", {}).get(table, {})}
        settings["options"].update(grid.get("options", {}))
        for name, value in zip(vary, values, strict=True):
            table, _, key = name.partition(".")
            if key:
                if table not in AXES:
                    raise unknown("table", table, AXES)
                settings[table][key] = value
            else:
                settings[name] = value
        for method in grid["methods"]:
            for strength, seed in itertools.product(grid.get("strengths", [None]), seeds):
                yield make_config(method=method, strength=strength, seed=seed, **settings)


RESERVED = {
    "method": "methods of a [[grid]]",
    "strength": "strengths of a [[grid]]",
    "seed": "seeds of the sweep",
    "validation": "validation of the sweep",
}


def _check_reserved(settings: Mapping[str, Any], where: str) -> None:
    for name in settings:
        if name in RESERVED:
            raise UserError(f"{name!r} does not belong into {where}: give {RESERVED[name]}")


def _check_kind(content: Mapping[str, Any], key: str, kind: type) -> None:
    if key in content and not isinstance(content[key], kind):
        what = "a list, such as [1, 10]" if kind is list else "a table"
        raise UserError(f"{key} = {content[key]!r} must be {what}")


def _check_names(content: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for name in content:
        if name not in known:
            raise unknown(f"entry of a {what} called", name, known)
