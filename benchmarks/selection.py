"""Choosing a strength (λ, LwF's α) without looking at test data, and the paper's way beside it.

A run that holds out a share of its training samples is evaluated on those and on test data. The strength with the best
mean average accuracy on held-out samples is chosen, and its test accuracy reported; test accuracies of the others are
only read for the paper's way, which is to take the best of them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.grid import Sweep

Result = dict[str, Any]
APART = ("strength", "seed")


def group_key(config: Mapping[str, Any]) -> str:
    """The same for runs that differ in nothing but strength and seed."""
    return json.dumps({name: value for name, value in config.items() if name not in APART}, sort_keys=True)


@dataclass(frozen=True)
class Choice:
    """The best strength of a group of runs, and how it was found."""

    strength: float
    way: str
    """"validation" or "test" (the paper's)."""
    score: float
    """Mean average accuracy over the seeds at that strength, on the data it was chosen on."""
    seeds: int
    at_edge: bool
    """It is the smallest or the largest of at least two tried: a wider grid may do better."""


def tunable(runs: Iterable[RunConfig]) -> list[RunConfig]:
    """The runs whose strength has to be chosen among several."""
    runs = list(runs)
    strengths: dict[str, set[float | None]] = defaultdict(set)
    for run in runs:
        strengths[group_key(run.to_dict())].add(run.strength)
    return [run for run in runs if len(strengths[group_key(run.to_dict())]) > 1]


def choose(results: Iterable[Result], way: str) -> dict[str, Choice]:
    """The best strength of every group, by group key.

    Scores are means over the seeds that all strengths of a group were run with, so that no lucky seed decides. Of equal
    ones the smallest strength is taken.
    """
    scores: dict[str, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        config = result["config"]
        found = result["validation"] if way == "validation" else result
        if config["strength"] is not None and found is not None:
            scores[group_key(config)][config["strength"]][config["seed"]] = found["average_accuracy"]
    choices = {}
    for key, by_strength in scores.items():
        seeds = set.intersection(*(set(found) for found in by_strength.values()))
        full = {strength: fmean(found[seed] for seed in seeds) for strength, found in by_strength.items() if seeds}
        if full:
            best = min(full, key=lambda strength: (-full[strength], strength))
            edge = len(full) > 1 and best in (min(full), max(full))
            choices[key] = Choice(best, way, full[best], len(seeds), edge)
    return choices


def first_phase(sweep: Sweep) -> list[RunConfig]:
    """What can be run at once: runs with nothing to choose, and the grid for the seeds that choose."""
    several = {run.key for run in tunable(sweep.runs)}
    return [run for run in sweep.runs if run.key not in several or run.seed in sweep.select_seeds]


def second_phase(sweep: Sweep, results: Sequence[Result]) -> tuple[list[RunConfig], list[RunConfig]]:
    """The runs of the chosen strengths with the seeds that are left; and one run of every group that stays open.

    A strength is chosen among all of the grid's, so a group with a run missing stays open.
    """
    there = {result["key"] for result in results}
    wanted = {run.key: run for run in tunable(sweep.runs)}
    grid = [run for run in wanted.values() if run.seed in sweep.select_seeds]
    open_groups = {group_key(run.to_dict()): run for run in reversed(grid) if run.key not in there}
    of_grid = {run.key for run in grid}
    ways = [choose((result for result in results if result["key"] in of_grid), way) for way in sweep.select]
    chosen = []
    for run in wanted.values():
        key = group_key(run.to_dict())
        if run.key in of_grid or key in open_groups:
            continue
        if any(choices[key].strength == run.strength for choices in ways):
            chosen.append(run)
    return chosen, list(open_groups.values())
