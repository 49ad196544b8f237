"""`benchmarks/RESULTS.md` from its template and the result files that are kept in `benchmarks/results`.

python -m benchmarks.findings            # write the page and its figures
python -m benchmarks.findings --check    # only say whether the page is up to date

The template is prose with calls of the methods of `Findings` in it, such as
{{ average("table2", "mnist", 2, "rewc") }}: no number of ours is typed by hand.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2

from benchmarks.cli import call
from benchmarks.names import UserError, unknown
from benchmarks.report import carry_over, figures, tables
from benchmarks.report.collect import Result, Setting, Value, collect, over_seeds, paired
from benchmarks.report.page import anchor, markdown_with_note
from benchmarks.store import PACKED, read_packed

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results"
TEMPLATE = HERE / "RESULTS.template.md"
PAGE = HERE / "RESULTS.md"
FIGURES = HERE.parent / "docs" / "figures"


@functools.cache
def kept(sweep: str) -> tuple[Result, ...]:
    """The kept results of a sweep."""
    path = KEPT / f"{sweep}{PACKED}"
    if not path.is_file():
        raise unknown("kept sweep", sweep, [p.stem for p in KEPT.glob(f"*{PACKED}")])
    return tuple(read_packed(path))


@functools.cache
def settings(sweep: str) -> tuple[Setting, ...]:
    """The settings of a kept sweep."""
    return tuple(collect(kept(sweep)))


def two_tasks_each() -> list[Setting]:
    """Two tasks of all four data sets: MNIST of Table II, the others with the shorter training that suits them."""
    return [s for s in settings("table2") if s.stream == "mnist"] + list(settings("two-tasks"))


class Findings:
    """What the template can call. `way` is how strengths were chosen: "validation", or "test" for the paper's way."""

    def __init__(self, *, draw: bool) -> None:
        self.draw = draw

    def setting(self, sweep: str, stream: str, tasks: int, **differs: object) -> Setting:
        """One stream under one protocol; `differs` picks among several, such as `optimizer="sgd"`."""
        found = [
            setting
            for setting in settings(sweep)
            if setting.stream == stream
            and setting.tasks == tasks
            and all(setting.config[name] == value for name, value in differs.items())
        ]
        if len(found) != 1:
            raise UserError(f"{sweep} has {len(found)} settings with {stream}, {tasks} tasks and {differs}, not one")
        return found[0]

    def runs(self, setting: Setting, method: str, way: str = "validation") -> list[Result]:
        """The runs that stand for a method."""
        found = setting.method(method)
        if found is None:
            raise unknown(f"method on {setting.title} called", method, [m.label for m in setting.methods])
        return found.runs(way)

    def average(
        self, sweep: str, stream: str, tasks: int, method: str, way: str = "validation", **differs: object
    ) -> str:
        """Average accuracy after the last task, mean ± standard deviation over seeds."""
        runs = self.runs(self.setting(sweep, stream, tasks, **differs), method, way)
        return tables.percent(over_seeds(runs, lambda run: run["average_accuracy"]))

    def held_out(self, sweep: str, stream: str, tasks: int, method: str, **differs: object) -> str:
        """`average` on the held-out samples, which may choose between protocols as well."""
        runs = self.runs(self.setting(sweep, stream, tasks, **differs), method)
        return tables.percent(over_seeds(runs, lambda run: run["validation"]["average_accuracy"]))

    def strength(
        self, sweep: str, stream: str, tasks: int, method: str, way: str = "validation", **differs: object
    ) -> str:
        """The chosen λ or α."""
        runs = self.runs(self.setting(sweep, stream, tasks, **differs), method, way)
        return f"{runs[0]['config']['strength']:g}"

    def points(
        self, sweep: str, stream: str, tasks: int, method: str, way: str = "validation", **differs: object
    ) -> float:
        """Average accuracy after the last task in per cent, mean over seeds: for comparisons in the template."""
        runs = self.runs(self.setting(sweep, stream, tasks, **differs), method, way)
        return 100 * fmean(run["average_accuracy"] for run in runs)

    def at(self, sweep: str, stream: str, tasks: int, method: str, strength: float, **differs: object) -> str:
        """Average accuracy after the last task at a given strength, whichever was chosen."""
        found = self.setting(sweep, stream, tasks, **differs).method(method)
        runs = [] if found is None else found.by_strength.get(strength, [])
        if not runs:
            raise UserError(f"{sweep}: {method} was not run at {strength:g} on {stream}")
        return tables.percent(over_seeds(runs, lambda run: run["average_accuracy"]))

    def trace(self, sweep: str, stream: str, tasks: int, method: str, task: int) -> str:
        """Sum of the importances that a task left, mean over seeds."""
        runs = self.runs(self.setting(sweep, stream, tasks), method)
        return f"{fmean(run['importances'][task]['sum'] for run in runs):.2g}"

    def coordinates(self, sweep: str, stream: str, tasks: int, method: str, **differs: object) -> str:
        """Over how many coordinates the importances of the first task are spread, (Σ F)² / Σ F², mean over seeds."""
        runs = self.runs(self.setting(sweep, stream, tasks, **differs), method)
        first = [run["importances"][0] for run in runs]
        return f"{fmean(found['sum'] ** 2 / found['squares'] for found in first):.0f}"

    def lead(
        self, sweep: str, stream: str, tasks: int, ours: str, theirs: str, way: str = "validation", **differs: object
    ) -> Value:
        """How far a method's average accuracy is above another's: of the differences, seed by seed."""
        setting = self.setting(sweep, stream, tasks, **differs)
        value = paired(self.runs(setting, ours, way), self.runs(setting, theirs, way))
        if value is None:
            raise UserError(f"{sweep}: {ours} and {theirs} have no seed in common on {stream}")
        return value

    def gain(self, *case: Any, **differs: Any) -> str:
        """`lead` in points, mean ± standard deviation."""
        return tables.points(self.lead(*case, **differs))

    def reached(self, bar: float, *case: Any, **differs: Any) -> str:
        """`gain`, and whether it is at least so many points."""
        return _judged(self.gain(*case, **differs), self.lead(*case, **differs), bar)

    def level(self, bar: float, sweep: str, stream: str, tasks: int, method: str) -> str:
        """`average`, and whether it is at least so many per cent."""
        value = over_seeds(self.runs(self.setting(sweep, stream, tasks), method), lambda run: run["average_accuracy"])
        assert value is not None
        return _judged(self.average(sweep, stream, tasks, method), value, bar)

    def share(self, sweep: str, stream: str, tasks: int, ours: str, theirs: str, bar: float) -> str:
        """A method's average accuracy as per cent of another's, and whether it is at least so many."""
        value = 100 * self.points(sweep, stream, tasks, ours) / self.points(sweep, stream, tasks, theirs)
        return _verdict(f"{value:.0f} %", value >= bar)

    def order(self, sweep: str, stream: str, tasks: int, hoped: Sequence[str]) -> str:
        """The methods by their average accuracy, and whether that is the order in which they were named."""
        points = {method: self.points(sweep, stream, tasks, method) for method in hoped}
        found = sorted(hoped, key=lambda method: -points[method])
        shown = " > ".join(f"{method} {points[method]:.1f}" for method in found)
        return _verdict(shown, found == list(hoped))

    def comparison(self, sweep: str, stream: str, tasks: int, way: str = "validation", **differs: object) -> str:
        """The table of all methods."""
        table = tables.comparison(self.setting(sweep, stream, tasks, **differs), way)
        return _shown(table)

    def every_strength(self, sweep: str, stream: str, tasks: int) -> str:
        """The table of all λ."""
        return _shown(tables.by_strength(self.setting(sweep, stream, tasks)))

    def two_tasks(self, sweep: str, ours: str, theirs: str, way: str = "validation") -> str:
        """Table II."""
        return _shown(tables.two_tasks([s for s in settings(sweep) if s.tasks == 2], way, (theirs, ours)))

    def across(self, sweep: str, **differs: object) -> str:
        """The table of all methods in all settings of a sweep, or in those that `differs` picks."""
        chosen = [s for s in settings(sweep) if all(s.config[name] == value for name, value in differs.items())]
        return _shown(tables.across(chosen, "validation"))

    def leave_one_out(self, *methods: str, sweep: str | None = None, together: bool = False) -> str:
        """The table of λ, or of methods, chosen on other streams: of a sweep, or of two tasks on all of them."""
        chosen = list(settings(sweep)) if sweep else two_tasks_each()
        return _shown(carry_over.leave_one_out(chosen, methods, together=together))

    def task_by_task(self, sweep: str, stream: str, tasks: int, ours: str, theirs: str) -> str:
        """Table III."""
        return _shown(tables.task_by_task(self.setting(sweep, stream, tasks), "validation", (theirs, ours)))

    def fisher_energy(self, sweep: str, stream: str, **differs: object) -> str:
        """The table of the Fisher figure."""
        return _shown(tables.fisher_energy(self.setting(sweep, stream, 1, **differs)))

    def figure(self, kind: str, sweep: str, stream: str, tasks: int, caption: str, **differs: object) -> str:
        """A figure of `benchmarks.report.figures`, drawn into docs/figures."""
        setting = self.setting(sweep, stream, tasks, **differs)
        name = anchor(f"{sweep} {setting.title} {kind}")
        if self.draw:
            way = ("validation",) if kind in ("accuracy_after_each_task", "matrices") else ()
            drawn = getattr(figures, kind)(setting, *way)
            if drawn is None:
                raise UserError(f"{sweep} has nothing to draw for {kind}")
            FIGURES.mkdir(parents=True, exist_ok=True)
            drawn.savefig(FIGURES / f"{name}.png", dpi=110, metadata={"Software": None})
        return f"![{caption}](../docs/figures/{name}.png)\n\n*{caption}*"

    def made_by(self, sweep: str) -> str:
        """The command that makes a sweep's results again, and how long it takes at most."""
        cores = [0.0, 0.0]
        for seconds in sorted((result["seconds"]["total"] for result in kept(sweep)), reverse=True):
            cores[cores.index(min(cores))] += seconds
        runs, minutes = len(kept(sweep)), max(cores) / 60
        return f"`python -m benchmarks.sweep {sweep}`: {runs} runs, at most {minutes:.0f} minutes on two cores."

    def versions(self) -> str:
        """What made the kept results."""
        names = ("python", "torch", "avalanche-lib", "numpy")
        everything = [result for path in sorted(KEPT.glob(f"*{PACKED}")) for result in kept(path.stem)]
        return ", ".join(f"{n} {'/'.join(sorted({str(r['versions'][n]) for r in everything}))}" for n in names)


def _hidden(points: float, bar: float) -> str:
    """The second decimal, where rounding to one would hide that the bar is missed."""
    return f" ({points:.2f})" if points < bar <= round(points, 1) else ""


def _judged(shown: str, value: Value, bar: float) -> str:
    """Undecided if the seeds differ by so much that the bar lies in the interval of the mean."""
    points, margin = 100 * value.mean, value.margin
    verdict = _verdict(shown + _hidden(points, bar), points >= bar)
    if margin is not None and abs(points - bar) < 100 * margin:
        verdict = verdict.replace("**yes**", "yes") + ", within the seeds' spread"
    return verdict


def _verdict(value: str, reached: bool) -> str:
    return f"{value}: {'**yes**' if reached else 'no'}"


def _shown(table: tables.Table | None) -> str:
    if table is None:
        raise UserError("a table of RESULTS.template.md has no results behind it")
    return markdown_with_note(table)


def written(*, draw: bool) -> str:
    """The page. Undefined names in the template are errors."""
    findings = Findings(draw=draw)
    names = [name for name in dir(Findings) if not name.startswith("_")]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render({name: getattr(findings, name) for name in names})


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    arguments = parser.parse_args(argv)
    text = written(draw=not arguments.check)
    if arguments.check:
        if PAGE.read_text(encoding="utf-8") != text:
            raise UserError(f"{PAGE.name} is not what template and results say; run python -m benchmarks.findings")
        return 0
    PAGE.write_text(text, encoding="utf-8")
    print(f"written: benchmarks/{PAGE.name}")
    return 0


if __name__ == "__main__":
    call(main)
