"""From results to a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.names import UserError
from benchmarks.report import figures, tables
from benchmarks.report.collect import MethodRuns, Result, Setting, collect
from benchmarks.report.page import Picture, Section, anchor, html_page, markdown, save_pictures

DEFAULT_TITLE = "R-EWC: results"


@dataclass(frozen=True)
class Written:
    """Where a report lies."""

    html: Path
    markdown: Path
    figures: Path


def write_report(results: Iterable[Result], out: str | Path, *, title: str = DEFAULT_TITLE) -> Written:
    """Write `index.html`, `report.md` and the folder `figures`; nothing but the results is looked at."""
    results = list(results)
    if not results:
        raise UserError("there are no results to report; run `python -m benchmarks.sweep` or `make compare` first")
    sections = make_sections(collect(results))
    out = Path(out)
    pictures = out / "figures"
    save_pictures([picture for section in sections for picture in section.pictures], pictures)
    intro = introduction(results)
    page, text = out / "index.html", out / "report.md"
    page.write_text(html_page(title, intro, sections, pictures), encoding="utf-8")
    text.write_text(markdown(title, intro, sections, pictures.name), encoding="utf-8")
    return Written(page, text, pictures)


def make_sections(settings: Sequence[Setting]) -> list[Section]:
    """The tables over all streams, then one section for each setting."""
    overview = Section("EWC against R-EWC")
    overview.tables += [t for way in tables.WAYS if (t := tables.two_tasks(settings, way)) is not None]
    sections = [overview] if overview.tables and len(settings) > 1 else []
    return sections + [_setting_section(setting) for setting in settings]


def _setting_section(setting: Setting) -> Section:
    section = Section(setting.title)
    candidates = [tables.comparison(setting, "validation"), tables.comparison(setting, "test")]
    candidates.append(tables.by_strength(setting))
    candidates += [tables.task_by_task(setting, way) for way in tables.WAYS]
    candidates.append(tables.fisher_energy(setting))
    section.tables = [table for table in candidates if table is not None]
    stem = anchor(setting.title)
    chosen = "as given" if tables.how(setting, "validation") == tables.FIXED else "chosen on validation data"
    drawn = {
        "accuracy": (
            figures.accuracy_after_each_task(setting, "validation"),
            "Average accuracy over the tasks learned so far; bands: one standard deviation over seeds. "
            f"Strengths: {chosen}. Dotted: joint training.",
        ),
        "accuracy-paper-way": (
            figures.accuracy_after_each_task(setting, "test") if any(m.best for m in several(setting)) else None,
            "The same with the paper's way of choosing: the best strength on test data.",
        ),
        "trade-off": (
            figures.trade_off(setting),
            "First against last task at the end, one point per strength, mean over seeds; small numbers: the "
            "smallest and the largest. Upper right is better.",
        ),
        "matrices": (
            figures.matrices(setting, "validation"),
            f"Accuracy on every task after every task, mean over seeds. Strengths: {chosen}.",
        ),
        "fisher": (
            figures.fisher_maps(setting),
            "The layer's full Fisher matrix before and after rotation (first seed) and the share of its energy on the "
            "diagonal (all seeds).",
        ),
    }
    section.pictures = [Picture(f"{stem}-{n}", text, f) for n, (f, text) in drawn.items() if f is not None]
    return section


def several(setting: Setting) -> list[MethodRuns]:
    """Methods that were run with several strengths."""
    return [method for method in setting.methods if len(method.by_strength) > 1]


def introduction(results: Sequence[Result]) -> str:
    """How much stands behind the report, and what made it."""
    names = ("torch", "avalanche-lib", "avalanche-rewc")
    used = [f"{n} {', '.join(sorted({str(r['versions'].get(n)) for r in results}))}" for n in names]
    return (
        f"{len(results)} runs. Average accuracy is the mean over tasks; where a strength is chosen on validation data, "
        "every method is trained without the held-out share of the training samples. "
        "Single head, no task labels at test time, no stored samples except for joint and cumulative. "
        f"Made with {'; '.join(used)}."
    )
