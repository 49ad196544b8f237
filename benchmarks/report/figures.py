"""The figures of a report, from result files alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.fisher import unpack
from benchmarks.report.collect import MethodRuns, Result, Setting, Value

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#8B5E3C", "#7A3E9D", "#99A800")
"""Told apart by colour-blind readers too; markers help beyond that."""
MARKERS = "osD^vPX*<>"
WIDTH = 5.4
"""Inches of every figure: a phone shows it with letters that can be read, a wide screen two side by side."""
STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "axes.titlesize": "medium",
    "legend.frameon": False,
    "font.size": 10,
}


def style_of(setting: Setting, method: MethodRuns) -> dict[str, Any]:
    """A method's colour and marker, the same in all figures of a setting."""
    index = setting.methods.index(method)
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}


def accuracy_after_each_task(setting: Setting, way: str) -> Figure | None:
    """Average accuracy over the tasks learned so far, after each task, with a band of one standard deviation."""
    if setting.tasks < 2:
        return None
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        axis = figure.subplots()
        for method in setting.methods:
            runs = method.runs(way)
            if runs:
                values = [Value.of([run["average_accuracies"][k] for run in runs]) for k in range(setting.tasks)]
                _band(axis, values, {**style_of(setting, method), "label": _with_strength(method, runs)})
        if not axis.lines:
            return None
        axis.set_xticks(range(1, setting.tasks + 1))
        axis.set_xlabel("tasks learned")
        axis.set_ylabel("average accuracy, %")
        axis.set_title(setting.title)
        _legend_below(figure, axis)
        return figure


def trade_off(setting: Setting) -> Figure | None:
    """Accuracy on the first task against the last one as λ (or α) varies: one curve per method, one point per value."""
    if setting.tasks < 2:
        return None
    held_out = all(run["validation"] for m in setting.methods for runs in m.by_strength.values() for run in runs)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        axis = figure.subplots()
        for method in setting.methods:
            runs = method.by_strength
            if len(runs) > 1:
                strengths = sorted(s for s in runs if s is not None)
                first, last = (
                    [100 * fmean(_final(run, held_out)[task] for run in runs[s]) for s in strengths]
                    for task in (0, setting.tasks - 1)
                )
                axis.plot(first, last, label=method.label, markersize=5, **style_of(setting, method))
                for end in (0, -1):  # labels on every point would cover each other
                    text, point = f"{strengths[end]:g}", (first[end], last[end])
                    axis.annotate(text, point, xytext=(4, 4), textcoords="offset points", fontsize=8, color="#555")
        if not axis.lines:
            return None
        data = "validation data" if held_out else "test data"
        axis.set_xlabel(f"accuracy on task 1 at the end, % ({data})")
        axis.set_ylabel(f"accuracy on task {setting.tasks} at the end, %")
        axis.set_title(f"{setting.title}: as the strength varies")
        _legend_below(figure, axis)
        return figure


def _final(run: Result, held_out: bool) -> list[float]:
    """The last row of the accuracy matrix."""
    row: list[float] = (run["validation"] if held_out else run)["accuracy"][-1]
    return row


def matrices(setting: Setting, way: str) -> Figure | None:
    """The accuracy matrix (task × after task) of every method, mean over seeds."""
    shown = [(m, m.runs(way)) for m in setting.methods if m.runs(way)]
    if setting.tasks < 2 or not shown:
        return None
    with mpl.rc_context({**STYLE, "axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}):
        columns = min(3, len(shown))
        rows = -(-len(shown) // columns)
        figure = Figure(figsize=(WIDTH * (columns + 0.6) / 3.6, 1.9 * rows + 0.5), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat[len(shown) :]:
            axis.set_visible(False)
        for axis, (method, runs) in zip(axes.flat, shown, strict=False):
            values = np.array([_mean_row([run["accuracy"][k] for run in runs]) for k in range(setting.tasks)])
            image = axis.imshow(100 * values, vmin=0, vmax=100, cmap="viridis")
            if setting.tasks <= 5:
                for (k, task), value in np.ndenumerate(values):
                    if not np.isnan(value):
                        colour = "white" if value < 0.6 else "black"
                        axis.text(task, k, f"{100 * value:.0f}", ha="center", va="center", color=colour, fontsize=8)
            axis.set_title(_with_strength(method, runs).replace(", ", "\n"), fontsize=8)
            ticks = range(setting.tasks)
            axis.set_xticks(ticks, [str(t + 1) for t in ticks])
            axis.set_yticks(ticks, [str(t + 1) for t in ticks])
            axis.tick_params(length=0)
        for axis in axes[:, 0]:
            axis.set_ylabel("after task")
        for axis in axes[-1]:
            axis.set_xlabel("task")
        figure.colorbar(image, ax=axes, label="accuracy, %", shrink=0.8)
        return figure


def fisher_maps(setting: Setting) -> Figure | None:
    """Heat-maps of a layer's Fisher before and after rotation, with the kept energy: one row per method."""
    shown = []
    for method in setting.methods:
        runs = [run for group in method.by_strength.values() for run in group if run.get("fisher")]
        if runs:
            shown.append((method, runs))
    if not shown:
        return None
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(WIDTH, 2.6 * len(shown) + 0.8), layout="constrained")
        axes = figure.subplots(len(shown), 2, squeeze=False)
        for pair, (method, runs) in zip(axes, shown, strict=True):
            kept = {name: Value.of([run["fisher"][f"kept_{name}"] for run in runs]) for name in ("before", "after")}
            magnitudes = [np.abs(unpack(runs[0]["fisher"][name])) for name in ("before", "after")]
            top = max(m.max() for m in magnitudes)
            for axis, name, magnitude in zip(pair, ("before", "after"), magnitudes, strict=True):
                picture = np.log10(np.clip(magnitude / top, 1e-4, None))
                image = axis.imshow(picture, vmin=-4, vmax=0, cmap="magma", interpolation="nearest")
                axis.set_title(f"{name} rotation:\n{_share(kept[name])} on the diagonal", fontsize=8)
                axis.set_xticks([])
                axis.set_yticks([])
            pair[0].set_ylabel(method.name)
        figure.colorbar(image, ax=axes, label="log₁₀ magnitude, relative to the largest", shrink=0.7)
        figure.suptitle(f"Fisher of {shown[0][1][0]['fisher']['layer']}, {setting.title}", fontsize=11)
        return figure


def _band(axis: Axes, values: Sequence[Value | None], style: dict[str, Any]) -> None:
    """A line with a band; a method with a single point (joint training) is a dotted line across."""
    present = [(k + 1, value) for k, value in enumerate(values) if value is not None]
    if len(present) == 1 and present[0][0] > 1:
        axis.axhline(100 * present[0][1].mean, linestyle=":", color=style["color"], label=style["label"])
        return
    x = [k for k, _ in present]
    mean = np.array([100 * value.mean for _, value in present])
    std = np.array([100 * (value.std or 0.0) for _, value in present])
    axis.plot(x, mean, markersize=5, **style)
    axis.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)


def _legend_below(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if len(labels) < 9 else 3, fontsize=8)


def _with_strength(method: MethodRuns, runs: list[dict[str, Any]]) -> str:
    strength = runs[0]["config"]["strength"]
    return method.label if strength is None else f"{method.label}, {method.symbol} = {strength:g}"


def _mean_row(rows: list[list[Any]]) -> list[float]:
    return [float("nan") if None in column else fmean(column) for column in zip(*rows, strict=True)]


def _share(value: Value | None) -> str:
    if value is None:
        return "–"
    return f"{value.mean:.1%}" + ("" if value.std is None else f" ± {100 * value.std:.1f}")
