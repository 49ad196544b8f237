"""Choosing a strength (λ, LwF's α) without looking at test data, and the paper's way beside it.

Validation: every strength is run with a share of the training samples held out and evaluated on those. The one with the
best mean average accuracy over the seeds is then run once more, trained on all samples, and evaluated on test data.
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
APART = ("strength", "seed", "evaluate_on", "validation")


def group_key(config: Mapping[str, Any]) -> str:
    """The same for runs that differ in nothing but strength, seed and what they are evaluated on."""
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


def on_validation(config: RunConfig, share: float) -> RunConfig:
    """The run that stands for a run on test data when a strength is chosen."""
    return config.but(validation=share, evaluate_on="valid")


def tunable(runs: Iterable[RunConfig]) -> list[RunConfig]:
    """The runs whose strength has to be chosen among several."""
    runs = list(runs)
    strengths: dict[str, set[float | None]] = defaultdict(set)
    for run in runs:
        strengths[group_key(run.to_dict())].add(run.strength)
    return [run for run in runs if len(strengths[group_key(run.to_dict())]) > 1]


def choose(results: Iterable[Result], way: str) -> dict[str, Choice]:
    """The best strength of every group, by group key.

    Only strengths that were run with every seed of the group count, so that no lucky seed decides. Of equal ones the
    smallest is taken.
    """
    evaluate_on = {"validation": "valid", "test": "test"}[way]
    scores: dict[str, dict[float, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in results:
        config = result["config"]
        if config["evaluate_on"] == evaluate_on and config["strength"] is not None:
            scores[group_key(config)][config["strength"]][config["seed"]] = result["average_accuracy"]
    choices = {}
    for key, by_strength in scores.items():
        seeds = set().union(*by_strength.values())
        full = {strength: fmean(found.values()) for strength, found in by_strength.items() if set(found) == seeds}
        if full:
            best = min(full, key=lambda strength: (-full[strength], strength))
            edge = len(full) > 1 and best in (min(full), max(full))
            choices[key] = Choice(best, way, full[best], len(seeds), edge)
    return choices


def first_phase(sweep: Sweep) -> list[RunConfig]:
    """What can be run at once: the validation grid, runs with nothing to choose, and all of the grid if asked for."""
    several = {run.key for run in tunable(sweep.runs)}
    found = [run for run in sweep.runs if run.key not in several or "test" in sweep.select]
    if "validation" in sweep.select:
        held_out = [on_validation(run, sweep.validation) for run in sweep.runs if run.key in several]
        found = held_out + found
    return found


def second_phase(sweep: Sweep, results: Sequence[Result]) -> tuple[list[RunConfig], list[RunConfig]]:
    """The test runs of the chosen strengths; and one run of every group for which none could be chosen."""
    if "validation" not in sweep.select:
        return [], []
    wanted = {on_validation(run, sweep.validation).key: run for run in tunable(sweep.runs)}
    choices = choose((result for result in results if result["key"] in wanted), "validation")
    chosen: list[RunConfig] = []
    open_groups: dict[str, RunConfig] = {}
    for run in wanted.values():
        key = group_key(run.to_dict())
        if key not in choices:
            open_groups.setdefault(key, run)
        elif choices[key].strength == run.strength:
            chosen.append(run)
    return chosen, list(open_groups.values())
