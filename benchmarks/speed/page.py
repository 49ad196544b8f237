"""`benchmarks/SPEED.md` and its figure, from its template and the kept results."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import jinja2
from matplotlib.figure import Figure

from benchmarks.names import UserError
from benchmarks.report.page import markdown_table
from benchmarks.report.tables import Table
from benchmarks.speed.bars import bars
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.parts import read
from benchmarks.speed.rivals import RIVALS

HERE = Path(__file__).resolve().parent.parent
KEPT = HERE / "results" / "speed.json"
TEMPLATE = HERE / "SPEED.template.md"
PAGE = HERE / "SPEED.md"
FIGURE = HERE.parent / "docs" / "figures" / "speed-steps.png"


class Page:
    """What the template can call."""

    def __init__(self, measured: dict[str, Any], *, draw: bool) -> None:
        self.measured, self.draw = measured, draw

    def found(self, part: str, threads: int) -> Any:
        """The result of a part; None if there is none."""
        entry = self.measured.get(f"{part}@{threads}")
        return None if entry is None else entry["found"]

    def quick(self) -> list[str]:
        """The parts that were measured with few rounds and small sizes only."""
        return [key for key, entry in self.measured.items() if entry["quick"]]

    def clocks(self) -> str:
        """What time was taken."""
        return " or ".join(sorted({entry["clock"] for entry in self.measured.values()}))

    def bars(self) -> str:
        """Every line that must be reached."""
        rows = [
            [b.what, b.must, f"{b.reached:.2f}", b.where, "yes" if b.holds else "**no**"] for b in bars(self.measured)
        ]
        return markdown_table(Table("", ["", "must be", "is", "on, at worst", "holds"], rows))

    def steps(self, threads: int) -> str:
        """Times of a step over Naive's."""
        found = self.found("steps", threads)
        if found is None:
            return _MISSING
        ways = list(dict.fromkeys(way for times in found.values() for way in times if way != "naive"))
        rows = []
        for name, times in found.items():
            cells = [f"{times[way] / times['naive']:.2f}" if way in times else "" for way in ways]
            rows.append([NETWORKS[name].title, f"{1e3 * times['naive']:.1f}", *cells])
        return markdown_table(Table("", ["", "naive, ms", *ways], rows))

    def consolidation(self, threads: int) -> str:
        """Times per sample over those of `consolidate` with the sampled Fisher."""
        found = self.found("consolidation", threads)
        if found is None:
            return _MISSING
        header = [
            "",
            *(f"{NETWORKS[name].title.split(',')[0]}, {own['samples']} samples" for name, own in found.items()),
        ]
        ours = ["consolidate", "consolidate-exact"]
        rows = [["consolidate, ms per sample", *(f"{own['ms']['consolidate']:.2f}" for own in found.values())]]
        for way in [*ours[1:], *RIVALS]:
            cells = []
            for own in found.values():
                ms = own["ms"].get(way)
                once = " (once)" if way in own["once"] else ""
                cells.append(f"{ms / own['ms']['consolidate']:.2f}{once}" if ms else own["refused"].get(way, "")[:60])
            rows.append([RIVALS[way].title if way in RIVALS else "consolidate, exact Fisher", *cells])
        return markdown_table(Table("", header, rows))

    def widths(self) -> str:
        """Consolidation against layer width."""
        found = self.found("growth", 1)
        if found is None:
            return _MISSING
        rows = [
            [width, f"{t['consolidation']:.3f}", f"{100 * t['four eigendecompositions'] / t['consolidation']:.0f} %"]
            for width, t in found["widths"].items()
        ]
        return markdown_table(Table("", ["width", "seconds", "of them eigendecompositions"], rows))

    def growth(self, kind: str) -> str:
        """Seconds against samples or classes."""
        found = self.found("growth", 1)
        if found is None:
            return _MISSING
        return markdown_table(
            Table("", [kind, *found[kind]], [["seconds", *(f"{t:.3f}" for t in found[kind].values())]])
        )

    def experiences(self) -> str:
        """Seconds of whole experiences, early and late."""
        found = self.found("growth", 1)
        if found is None:
            return _MISSING
        times = found["experiences"]
        early, late = median(times[1:11]), median(times[-10:])
        return f"{early:.3f} s for experiences 2 to 11, {late:.3f} s for the last ten of {len(times)}"

    def stored(self) -> str:
        """Stored bytes in units of the model's."""
        found = self.found("memory", 1)
        if found is None:
            return _MISSING
        rows = []
        for name, kinds in found["stored"].items():
            for kind, sizes in kinds.items():
                rows.append(
                    [
                        f"{NETWORKS[name].title.split(',')[0]}: {kind}",
                        f"{sizes[0]:.2f}",
                        f"{sizes[-1]:.2f}",
                        str(len(sizes)),
                    ]
                )
        return markdown_table(Table("", ["", "after one", "after all", "experiences"], rows))

    def peaks(self) -> str:
        """Peaks of a consolidation, by samples."""
        found = self.found("memory", 1)
        if found is None:
            return _MISSING
        return ", ".join(f"{gib:.2f} GiB with {samples} samples" for samples, gib in found["vgg16"]["GiB"].items())

    def data(self, threads: int) -> str:
        """Whole experiments over plain torch."""
        found = self.found("data", threads)
        if found is None:
            return _MISSING
        rows = [[way, f"{t:.1f}", f"{t / found['torch']:.2f}"] for way, t in found.items()]
        return markdown_table(Table("", ["", "seconds", "/ torch"], rows))

    def figure(self) -> str:
        """Steps over Naive's, one thread."""
        found = self.found("steps", 1)
        if found is None:
            return ""
        if self.draw:
            FIGURE.parent.mkdir(parents=True, exist_ok=True)
            _drawn(found).savefig(FIGURE, dpi=110, metadata={"Software": None})
        return f"![time of a step over Naive's](../docs/figures/{FIGURE.name})"

    def made_with(self) -> str:
        """Versions of all that took part."""
        names = ("python", "torch", "avalanche-lib", "commit")
        found = {n: sorted({str(e["versions"].get(n)) for e in self.measured.values()}) for n in names}
        return ", ".join(f"{name} {'/'.join(values)}" for name, values in found.items())


_MISSING = "*not measured yet*"


def _drawn(found: dict[str, dict[str, float]]) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    ways = (
        "rewc",
        "rewc none",
        "rewc original",
        "paper",
        "ewc online",
        "ewc separate after 5",
        "ewc separate after 20",
    )
    for index, way in enumerate(ways):
        heights = [times.get(way, 0) / times["naive"] for times in found.values()]
        axes.bar([i + index * 0.12 for i in range(len(found))], heights, 0.11, label=way)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xticks(
        [i + 0.36 for i in range(len(found))], [NETWORKS[n].title.replace(", ", "\n") for n in found], fontsize=7
    )
    axes.set_ylabel("time of a step / Naive's")
    axes.legend(fontsize=7, ncols=4)
    return figure


def written(*, draw: bool) -> str:
    """The page."""
    measured = read(KEPT)
    if not measured:
        raise UserError("nothing has been measured yet: run python -m benchmarks.speed")
    shown = Page(measured, draw=draw)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    names = [name for name in dir(Page) if not name.startswith("_")]
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render({name: getattr(shown, name) for name in names})
