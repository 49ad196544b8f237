"""The tables of a report, in the paper's layouts. Our numbers come from result files; the paper's stand in brackets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import paper
from benchmarks.report.collect import MethodRuns, Result, Setting, Value, final_accuracy, over_seeds, paired

FIXED = "strengths were fixed beforehand, none was chosen"
WAYS = {
    "validation": "λ and α chosen on validation data",
    "test": "the paper's way: λ and α chosen as the best on test data",
}
TITLES = {"validation": "Strength chosen on validation data", "test": "The paper's way: best on test data"}
PAIR = ("rewc-none", "rewc")
"""EWC and R-EWC in the paper's tables."""


@dataclass(frozen=True)
class Table:
    """Text cells; the first column is left-aligned, the others right-aligned."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""


def tells(setting: Setting, way: str) -> bool:
    """Whether choosing this way has anything to say: strengths were chosen so, or there was nothing to choose."""
    if way == "test":
        return any(method.best for method in setting.methods)
    return any(method.chosen for method in setting.methods) or not any(method.best for method in setting.methods)


def how(setting: Setting, way: str) -> str:
    """How the strengths in a table of this setting came about."""
    if way == "validation" and not any(m.chosen for m in setting.methods):
        return FIXED
    return WAYS[way]


AT_EDGE = " * at the edge of the grid: a wider one may do better."


def comparison(setting: Setting, way: str) -> Table | None:
    """Every method: accuracy per task at the end, average, forgetting, seconds."""
    if not tells(setting, way):
        return None
    rows = []
    edge = False
    paper_column = any(paper.final_average(setting.stream, setting.tasks, m.label) for m in setting.methods)
    for method in setting.methods:
        runs = method.runs(way)
        if not runs:
            continue
        choice = method.choice(way)
        mark = "*" if choice and choice.at_edge else "" if choice else " (fixed)"
        edge = edge or mark == "*"
        strength = runs[0]["config"]["strength"]
        cells = [method.label, "–" if strength is None else f"{method.symbol} = {strength:g}{mark}"]
        cells += [percent(over_seeds(runs, final_accuracy(task))) for task in range(setting.tasks)]
        cells += [
            percent(over_seeds(runs, lambda run: run["average_accuracy"])),
            percent(over_seeds(runs, lambda run: run["forgetting"])),
            seconds(over_seeds(runs, lambda run: run["seconds"]["total"])),
            str(len(runs)),
        ]
        if paper_column:
            printed = paper.final_average(setting.stream, setting.tasks, method.label)
            cells.append("" if printed is None else f"{printed:.1f}")
        rows.append(cells)
    if not rows:
        return None
    tasks = [f"task {task + 1}" for task in range(setting.tasks)]
    header = ["method", "strength", *tasks, "average", "forgetting", "seconds", "seeds"]
    note = f"Accuracy after the last task in %, mean ± standard deviation over seeds; {how(setting, way)}."
    note += AT_EDGE if edge else ""
    title = "Strengths as given" if how(setting, way) == FIXED else TITLES[way]
    return Table(title, header + (["paper, average"] if paper_column else []), rows, note)


def by_strength(setting: Setting) -> Table | None:
    """Table I: both tasks at every λ, for the methods of the EWC family that were run with several on test data."""
    if setting.tasks != 2:
        return None
    methods = [m for m in setting.methods if m.symbol == "λ" and len(m.by_strength) > 1]
    if not methods:
        return None
    methods = [m for m in setting.methods if m.symbol is None and m.name == "naive" and m.by_strength] + methods
    strengths = sorted({s for m in methods for s in m.by_strength if s is not None})
    rows = []
    for method in methods:
        row = [method.label]
        printed = paper.TABLE_1.get(paper.name_of(method.label), {}) if setting.stream == "mnist" else {}
        for strength in strengths:
            runs = method.by_strength.get(strength if method.symbol else None, [])
            cell = " / ".join(percent(over_seeds(runs, final_accuracy(task))) for task in range(2))
            best = method.best is not None and strength == method.best.strength
            theirs = printed.get(strength)
            row.append((f"**{cell}**" if best else cell) + (f" ({theirs[0]} / {theirs[1]})" if theirs else ""))
        rows.append(row)
    note = (
        "Task 1 / task 2 after both, on test data, in %; bold: best average of the row (the paper's way of choosing)."
    )
    seeds = {len(runs) for method in methods for runs in method.by_strength.values()}
    if len(seeds) > 1:
        note = note.replace("best average of the row", f"best average of the row on the {min(seeds)} seeds of all λ")
        note += f" Over {min(seeds)} to {max(seeds)} seeds: the chosen λ were run with all."
    note += " In brackets: the paper." if setting.stream == "mnist" else ""
    return Table(f"{setting.title}: every λ", ["method", *(f"λ = {s:g}" for s in strengths)], rows, note)


def two_tasks(settings: Sequence[Setting], way: str, pair: tuple[str, str] = PAIR) -> Table | None:
    """Table II: EWC against R-EWC on streams of two tasks; `pair` names the two methods."""
    rows = []
    ways = set()
    for setting in settings:
        ewc, rewc = (_runs(setting, label, way) for label in pair)
        if setting.tasks != 2 or not ewc or not rewc:
            continue
        ways.add(how(setting, way))
        gain = paired(rewc, ewc)
        printed = paper.TABLE_2.get(paper.SAME_DATA.get(setting.stream, setting.stream), {})
        theirs = [_printed(printed.get(label)) for label in PAIR]
        rows.append(
            [
                setting.title.replace(", 2 tasks", ""),
                *map(_average_and_tasks, (ewc, rewc)),
                "–" if gain is None else points(gain),
                " / ".join(_strength(setting, label, way) for label in pair),
                "0" if gain is None else str(gain.count),
                *theirs,
            ]
        )
    if not rows:
        return None
    header = [
        "stream",
        "EWC (T1 / T2)",
        "R-EWC (T1 / T2)",
        "gain",
        "λ: EWC / R-EWC",
        "seeds",
        "paper: EWC",
        "paper: R-EWC",
    ]
    note = f"EWC is {pair[0]}, R-EWC is {pair[1]}; average accuracy in %, in brackets both tasks; gain on seeds that "
    note += f"both have; {'; or '.join(sorted(ways))}."
    note += AT_EDGE if any("*" in row[4] for row in rows) else ""
    return Table("EWC against R-EWC, two tasks", header, rows, note)


def task_by_task(setting: Setting, way: str, pair: tuple[str, str] = PAIR) -> Table | None:
    """Table III: every task after every task, EWC / R-EWC; `pair` names the two methods."""
    ewc, rewc = (_runs(setting, label, way) for label in pair)
    if setting.tasks < 3 or not ewc or not rewc:
        return None
    printed = paper.TABLE_3.get(paper.SAME_DATA.get(setting.stream, setting.stream), {})
    averages = paper.TABLE_3_AVERAGES.get(paper.SAME_DATA.get(setting.stream, setting.stream), {})
    show_paper = bool(printed) and setting.tasks == 4
    rows = []
    for k in range(setting.tasks):
        row = [f"T{k + 1}"]
        for task in range(setting.tasks):
            if task > k:
                row.append("–")
                continue
            ours = " / ".join(percent(Value.of([r["accuracy"][k][task] for r in runs])) for runs in (ewc, rewc))
            theirs = f" ({printed[PAIR[0]][k][task]} / {printed[PAIR[1]][k][task]})" if show_paper else ""
            row.append(ours + theirs)
        ours = " / ".join(percent(Value.of([r["average_accuracies"][k] for r in runs])) for runs in (ewc, rewc))
        theirs = f" ({averages[PAIR[0]][k]} / {averages[PAIR[1]][k]})" if show_paper else ""
        rows.append([*row, ours + theirs])
    header = ["after", *(f"T{task + 1}" for task in range(setting.tasks)), "average"]
    note = f"EWC / R-EWC, accuracy in %; {how(setting, way)}." + (" In brackets: the paper." if show_paper else "")
    return Table(f"{setting.title}: every task after every task", header, rows, note)


def across(settings: Sequence[Setting], way: str) -> Table | None:
    """Average accuracy at the end of every method (rows) in every setting (columns), with its strength."""
    labels = list(dict.fromkeys(method.label for setting in settings for method in setting.methods))
    rows = []
    for label in labels:
        cells = []
        for setting in settings:
            strength = _strength(setting, label, way)
            average = percent(over_seeds(_runs(setting, label, way), lambda run: run["average_accuracy"]))
            cells.append(f"{average} ({strength})" if strength else average)
        rows.append([label, *cells])
    edge = any("*" in cell for row in rows for cell in row[1:])
    if not rows:
        return None
    note = "Average accuracy after the last task in %, mean ± standard deviation over seeds, in brackets the strength; "
    note += f"{'; or '.join(sorted({how(setting, way) for setting in settings}))}.{AT_EDGE if edge else ''}"
    return Table("Every method in every setting", ["method", *(setting.title for setting in settings)], rows, note)


def fisher_energy(setting: Setting) -> Table | None:
    """The share of the Fisher's energy on the diagonal, for every method with a kept matrix."""
    rows = []
    for method in setting.methods:
        runs = [run for group in method.by_strength.values() for run in group if run.get("fisher")]
        if runs:
            kept = [Value.of([run["fisher"][name] for run in runs]) for name in ("kept_before", "kept_after")]
            rows.append([method.label, *map(percent, kept), str(len(runs))])
    if not rows:
        return None
    if setting.stream == "mnist-mlp":
        before, after = paper.FISHER_ENERGY
        rows.append(["paper", f"{before}", f"{after}", ""])
    note = "Σ F_ii² / Σ F_ij² in %, mean ± standard deviation over seeds."
    return Table(
        f"{setting.title}: energy on the Fisher's diagonal", ["method", "before", "after rotation", "seeds"], rows, note
    )


def percent(value: Value | None) -> str:
    """A share as per cent, with its standard deviation if there is one."""
    if value is None:
        return "–"
    return f"{100 * value.mean:.1f}" + ("" if value.std is None else f" ± {100 * value.std:.1f}")


def points(value: Value) -> str:
    """A difference of shares in points, with its sign and its standard deviation."""
    return ("+" if value.mean >= 0 else "") + percent(value).replace("-", "−")


def seconds(value: Value | None) -> str:
    """Seconds, with their standard deviation if there is one."""
    if value is None:
        return "–"
    return f"{value.mean:.1f}" + ("" if value.std is None else f" ± {value.std:.1f}")


def _runs(setting: Setting, label: str, way: str) -> list[Result]:
    method: MethodRuns | None = setting.method(label)
    return [] if method is None else method.runs(way)


def _strength(setting: Setting, label: str, way: str) -> str:
    """With a star if it is at the edge of its grid; nothing for a method without one, or without runs."""
    method, runs = setting.method(label), _runs(setting, label, way)
    if method is None or not runs or method.symbol is None:
        return ""
    choice = method.choice(way)
    return f"{runs[0]['config']['strength']:g}{'*' if choice and choice.at_edge else ''}"


def _average_and_tasks(runs: list[Result]) -> str:
    average = percent(over_seeds(runs, lambda run: run["average_accuracy"]))
    tasks = " / ".join(percent(over_seeds(runs, final_accuracy(task))) for task in range(2))
    return f"{average} ({tasks})"


def _printed(values: tuple[float, float, float] | None) -> str:
    return "" if values is None else f"{values[0]} ({values[1]} / {values[2]})"
