"""Results in the order a report needs them: settings, in them methods, in them strengths, in them seeds."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.methods import FAMILIES, all_names, find_method, with_options
from benchmarks.names import UserError
from benchmarks.selection import Choice, choose, group_key
from benchmarks.streams import STREAMS, find_stream

Result = dict[str, Any]
OF_METHOD = ("method", "options", "strength", "seed", "validation", "fisher_layer")
"""Settings that tell methods and their runs apart; what is left is common to a table."""


@dataclass(frozen=True)
class Value:
    """Mean and standard deviation over seeds."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Value | None:
        """None if there is nothing, or something is missing."""
        found = list(values)
        numbers = [value for value in found if value is not None]
        if not numbers or len(numbers) < len(found):
            return None
        return cls(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))

    @property
    def margin(self) -> float | None:
        """The mean is known to ± this much with 95 %, by Student's t; None if the seeds are too few or many to say."""
        t = STUDENT_95.get(self.count)
        return None if t is None or self.std is None else t * self.std / self.count**0.5


STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Quantiles of Student's t, by the number of seeds."""


@dataclass
class MethodRuns:
    """All runs of one method in one setting."""

    name: str
    label: str
    """The name, with the options that are not the usual ones."""
    by_strength: dict[float | None, list[Result]] = field(default_factory=lambda: defaultdict(list))
    chosen: Choice | None = None
    """By validation."""
    best: Choice | None = None
    """The paper's way: best on test data."""

    @property
    def symbol(self) -> str | None:
        """λ, α or None."""
        return find_method(self.name).strength

    @property
    def honest_strength(self) -> float | None:
        """Chosen on validation data, or the only one tried."""
        return self.chosen.strength if self.chosen else next(iter(self.by_strength), None)

    def choice(self, way: str) -> Choice | None:
        """How the strength was chosen this way; None if it was not."""
        return self.chosen if way == "validation" else self.best

    def runs(self, way: str) -> list[Result]:
        """The runs that stand for the method; none if its strength was not chosen this way.

        Args:
            way: "validation" or "test".
        """
        if self.symbol is None:
            return self.by_strength.get(None, [])
        if way == "test":
            return self.by_strength[self.best.strength] if self.best else []
        if self.chosen is None and len(self.by_strength) != 1:
            return []
        return self.by_strength.get(self.honest_strength, [])


@dataclass
class Setting:
    """Everything that was run on one stream under one protocol."""

    config: dict[str, Any]
    methods: list[MethodRuns]
    unusual: dict[str, Any] = field(default_factory=dict)
    """Options with another value than the usual one in all methods that have them."""

    @property
    def stream(self) -> str:
        """Name of the stream."""
        return str(self.config["stream"])

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return int(self.config["n_experiences"])

    @property
    def title(self) -> str:
        """Stream, number of tasks, and what differs from the stream's protocol and the methods' usual options."""
        usual = {**DEFAULTS, **find_stream(self.stream).protocol}
        usual.update(model=dict(find_stream(self.stream).model))
        usual.update(stream_options=dict(find_stream(self.stream).stream_options))
        differs = [f"{name} {_plain(self.config[name])}" for name in usual if self.config[name] != usual[name]]
        differs += [f"{name} {_plain(value)}" for name, value in self.unusual.items()]
        return ", ".join([f"{self.stream}, {self.tasks} tasks" if self.tasks > 1 else self.stream, *differs])

    def method(self, name: str) -> MethodRuns | None:
        """A method by its label."""
        return next((method for method in self.methods if method.label == name), None)


COMPARED = (
    "optimizer",
    "momentum",
    "weight_decay",
    "lr_drop_epoch",
    "lr_drop_factor",
    "reset_optimizer",
    "loss",
    "class_order",
)
DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(RunConfig) if f.name in COMPARED}


def collect(results: Iterable[Result]) -> list[Setting]:
    """Results as settings, in the order of streams and of methods."""
    results = list(results)
    ways = {way: choose(results, way) for way in ("validation", "test")}
    settings: dict[str, list[Result]] = defaultdict(list)
    for result in sorted(results, key=lambda result: result["config"]["seed"]):
        settings[json.dumps(_common(result["config"]), sort_keys=True)].append(result)
    methods: dict[str, dict[str, MethodRuns]] = defaultdict(dict)
    unusual = {where: _unusual(found) for where, found in settings.items()}
    for where, found in settings.items():
        for result in found:
            config, group = result["config"], group_key(result["config"])
            if group not in methods[where]:
                methods[where][group] = MethodRuns(config["method"], _label(config, unusual[where]))
            methods[where][group].by_strength[config["strength"]].append(result)
    for groups in methods.values():
        _refuse_mixture(groups.values())
        for group, runs in groups.items():
            if len(runs.by_strength) > 1:  # else there was nothing to choose
                runs.chosen, runs.best = (ways[way].get(group) for way in ("validation", "test"))
    streams = list(STREAMS)
    ordered = [
        Setting(_common(found[0]["config"]), sorted(methods[where].values(), key=_method_order), unusual[where])
        for where, found in sorted(settings.items())
    ]
    return sorted(ordered, key=lambda s: (streams.index(s.stream), s.tasks, s.title))


def _refuse_mixture(methods: Iterable[MethodRuns]) -> None:
    """Runs that held out different shares of the data are not the same experiment."""
    shares: dict[float, str] = {}
    for method in methods:
        for result in itertools.chain(*method.by_strength.values()):
            shares.setdefault(result["config"]["validation"], method.label)
    if len(shares) > 1:
        raise UserError(
            "runs of one table held out different shares of the training data "
            f"({', '.join(f'{share:g}: {label}' for share, label in sorted(shares.items()))}); "
            "keep them in folders of their own"
        )


def paired(ours: Iterable[Result], theirs: Iterable[Result]) -> Value | None:
    """How far an average accuracy is above another one: of the differences on common seeds; None if there are none."""
    above, below = ({run["config"]["seed"]: run["average_accuracy"] for run in runs} for runs in (ours, theirs))
    return Value.of([above[seed] - below[seed] for seed in sorted(above.keys() & below.keys())])


def over_seeds(runs: Iterable[Result], number: Callable[[Result], float | None]) -> Value | None:
    """A number of every run, as mean and standard deviation."""
    return Value.of([number(run) for run in runs])


def final_accuracy(task: int) -> Callable[[Result], float | None]:
    """Accuracy on a task at the end, as a function of a result."""

    def number(result: Result) -> float | None:
        value: float | None = result["accuracy"][-1][task]
        return value

    return number


def _common(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in OF_METHOD}


def _differing(config: dict[str, Any]) -> dict[str, Any]:
    """Options of a run that are neither in its method's name nor usual."""
    usual = with_options(find_method(config["method"]), {}, find_stream(config["stream"])).options
    return {name: value for name, value in config["options"].items() if value != usual[name]}


def _unusual(results: Iterable[Result]) -> dict[str, Any]:
    """Options with an unusual value that is the same in all runs that have them: told once, in the title."""
    seen: dict[str, list[Any]] = defaultdict(list)
    unusual: dict[str, Any] = {}
    for result in results:
        unusual.update(_differing(result["config"]))
        for name, value in result["config"]["options"].items():
            if value not in seen[name]:
                seen[name].append(value)
    return {name: value for name, value in unusual.items() if len(seen[name]) == 1}


def _label(config: dict[str, Any], told: Mapping[str, Any]) -> str:
    differs = [f"{name}={_plain(value)}" for name, value in _differing(config).items() if name not in told]
    layer = [f"Fisher of {config['fisher_layer']}"] if config["fisher_layer"] else []
    name: str = config["method"]
    return name + (f" ({', '.join([*differs, *layer])})" if differs or layer else "")


def _method_order(method: MethodRuns) -> tuple[int, int, str]:
    names = all_names()
    family = find_method(method.name).family
    return list(FAMILIES).index(family), names.index(method.name) if method.name in names else len(names), method.label


def _plain(value: Any) -> str:
    if value is None:
        return "all"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
