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
from benchmarks.speed.memory import AT_224
from benchmarks.speed.networks import NETWORKS
from benchmarks.speed.parts import KEEPING_MEMORY, of_part, read
from benchmarks.speed.ratio import Ratio, ratio
from benchmarks.speed.rivals import RIVALS

HERE = Path(__file__).resolve().parent.parent
KEPT = HERE / "results" / "speed.json"
TEMPLATE = HERE / "SPEED.template.md"
PAGE = HERE / "SPEED.md"
FIGURE = HERE.parent / "docs" / "figures" / "speed-steps.png"
OURS = {
    "consolidate-whole": "consolidate, whole bases",
    "consolidate-patch": "consolidate, patch bases",
    "consolidate-patch-whole": "consolidate, whole patch bases",
    "consolidate-exact": "consolidate, exact Fisher",
}


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
        shown = {"yes": "yes", "no": "**no**"}
        rows = [
            [b.what, b.must, str(b.reached), b.where, shown.get(b.holds, f"undecided, by the median {b.by_median}")]
            for b in bars(self.measured)
        ]
        return markdown_table(Table("", ["", "must be", "is", "on, at worst", "holds"], rows))

    def steps(self, threads: int, part: str = "steps") -> str:
        """Times of a step over Naive's, and their intervals."""
        found = self.found(part, threads)
        if found is None:
            return _MISSING
        ways = list(dict.fromkeys(way for times in found.values() for way in times if way != "naive"))
        rows = []
        for name, times in found.items():
            cells = [str(ratio(times[way], times["naive"])) if way in times else "" for way in ways]
            naive = times["naive"]
            rows.append([NETWORKS[name].title, str(len(naive)), f"{1e3 * median(naive):.1f}", *cells])
        return markdown_table(Table("", ["", "rounds", "naive, ms", *ways], rows))

    def floor(self, name: str) -> str:
        """The least that a step of an MLP takes: diagonal EWC and the products with bases alone, over online EWC, as
        `steps-kept` has them: arithmetic and calls.
        """
        sentences = []
        for threads, found in of_part(self.measured, "steps-kept").items():
            times = found.get(name, {})
            if "bases alone" in times:
                least = [none + alone for none, alone in zip(times["rewc none"], times["bases alone"], strict=True)]
                sentences.append(f"{ratio(least, times['ewc online'])} with {threads}")
        return ", ".join(sentences) or _MISSING

    def keeping(self) -> str:
        """The environment of `steps-kept`."""
        return " ".join(f"`{name}={value}`" for name, value in KEEPING_MEMORY.items())

    def consolidation(self, threads: int) -> str:
        """Times per sample over those of `consolidate` with the sampled Fisher."""
        found = self.found("consolidation", threads)
        if found is None:
            return _MISSING
        header = [
            "",
            *(f"{NETWORKS[name].title.split(',')[0]}, {own['samples']} samples" for name, own in found.items()),
        ]
        ours = {name: own["seconds"]["consolidate"] for name, own in found.items()}
        per_sample = [f"{1e3 * median(seconds) / found[name]['samples']:.2f}" for name, seconds in ours.items()]
        rows = [
            ["rounds", *(str(len(seconds)) for seconds in ours.values())],
            ["consolidate, ms per sample", *per_sample],
        ]
        for way in [*OURS, *RIVALS]:
            cells = []
            for name, own in found.items():
                if way in own["seconds"]:
                    value = ratio(own["seconds"][way], ours[name])
                    notes = ["once" if len(own["seconds"][way]) == 1 else value.interval]
                    notes += [f"b {own['batch'][way]}"] if way in own["batch"] else []
                    cells.append(f"{value.median:.2f} ({', '.join(notes)})")
                else:
                    cells.append(own["refused"].get(way, "")[:60])
            rows.append([RIVALS[way].title if way in RIVALS else OURS[way], *cells])
        return markdown_table(Table("", header, rows))

    def overtaking(self) -> str:
        """From which width on the eigendecompositions are more than half of a consolidation."""
        sentences = []
        for threads, found in of_part(self.measured, "growth").items():
            shares = {int(width): _share(times).median for width, times in found["widths"].items()}
            below = [width for width, share in shares.items() if share <= 0.5]
            above = [width for width in shares if width > max(below, default=0)]
            sentences.append(f"{f'from a width of {min(above)} on' if above else 'nowhere'} with {threads}")
        return ", ".join(sentences) or _MISSING

    def widths(self) -> str:
        """Consolidation against layer width, and the share of the eigendecompositions."""
        columns = {}
        for threads, found in of_part(self.measured, "growth").items():
            columns[f"seconds, {threads}"] = {
                w: f"{median(t['consolidation']):.3f}" for w, t in found["widths"].items()
            }
            columns[f"eigenvectors, {threads}"] = {w: str(_share(t)) for w, t in found["widths"].items()}
        return _table("width", columns)

    def growth(self, kind: str) -> str:
        """Seconds against samples or classes."""
        growth = of_part(self.measured, "growth")
        columns = {
            f"seconds, {threads}": {case: f"{median(times):.4f}" for case, times in found[kind].items()}
            for threads, found in growth.items()
        }
        return _table(kind, columns)

    def experiences(self) -> str:
        """Seconds of whole experiences, early and late."""
        sentences = []
        for threads, found in of_part(self.measured, "growth").items():
            times = found["experiences"]
            early, late = median(times[1:11]), median(times[-10:])
            ten = f"{early:.3f} s for experiences 2 to 11, {late:.3f} s for the last ten of {len(times)}"
            sentences.append(f"{ten} ({threads})")
        return "; ".join(sentences) or _MISSING

    def late_steps(self) -> str:
        """A step after many experiences over one after the first, and two that are the same."""
        columns: dict[str, dict[str, str]] = {"learned": {}, "after all / after one": {}, "after one / after one": {}}
        for threads, found in of_part(self.measured, "growth").items():
            for name, times in found["steps"].items():
                row = f"{NETWORKS[name].title}, {threads}"
                cells = (
                    str(len(found["experiences"])),
                    *(str(ratio(times[w], times["early"])) for w in ("late", "early again")),
                )
                for column, cell in zip(columns.values(), cells, strict=True):
                    column[row] = cell
        return _table("", columns)

    def stored(self) -> str:
        """Stored bytes in units of the model's."""
        found = next(iter(of_part(self.measured, "memory").values()), None)
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
        """Peaks of a consolidation, by network, Fisher and samples."""
        found = next(iter(of_part(self.measured, "memory").values()), None)
        if found is None:
            return _MISSING
        titles = {name: network.title.split(",")[0] for name, network in (NETWORKS | AT_224).items()}
        rows = [
            [
                f"{titles[peak['network']]}, {peak['fisher']} Fisher",
                str(peak["samples"]),
                f"{1024 * peak['model GiB']:.1f}",
                f"{1024 * peak['GiB']:.0f}",
                f"{peak['GiB'] / peak['model GiB']:.1f}",
            ]
            for peak in found["peaks"]
        ]
        return markdown_table(Table("", ["", "samples", "model, MiB", "peak above, MiB", "in models"], rows))

    def data(self) -> str:
        """Whole experiments over plain torch."""
        columns: dict[str, dict[str, str]] = {}
        for threads, found in of_part(self.measured, "data").items():
            seconds = found["seconds"]
            columns[f"seconds, {threads}"] = {way: f"{median(times):.1f}" for way, times in seconds.items()}
            columns[f"/ torch, {threads}"] = {
                way: str(ratio(times, seconds["torch"])) for way, times in seconds.items()
            }
        return _table("", columns)

    def experiment(self) -> str:
        """What experiment `data` is about."""
        sizes = [
            f"{found['train']} training and {found['test']} test pictures, {found['epochs']} epochs of each experience "
            f"({threads}, {len(found['seconds']['torch'])} rounds)"
            for threads, found in of_part(self.measured, "data").items()
        ]
        return "; ".join(sizes) or _MISSING

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
        """Versions of all that took part, and which part was measured at which commit, on which kind of machine."""
        names = ("python", "torch", "avalanche-lib")
        found = {n: sorted({str(e["versions"].get(n)) for e in self.measured.values()}) for n in names}
        parts: dict[str, list[str]] = {}
        for key, entry in self.measured.items():
            where = f"{entry['versions'].get('commit')} on {entry.get('cpu', 'another machine')}"
            parts.setdefault(where, []).append(key)
        commits = [f"commit {where} ({', '.join(keys)})" for where, keys in parts.items()]
        return ", ".join([*(f"{name} {'/'.join(values)}" for name, values in found.items()), *commits])


_MISSING = "*not measured yet*"


def _table(corner: str, columns: dict[str, dict[str, str]]) -> str:
    """Columns by name, of cells by the name of their row."""
    rows = dict.fromkeys(row for column in columns.values() for row in column)
    if not rows:
        return _MISSING
    return markdown_table(
        Table("", [corner, *columns], [[row, *(column.get(row, "") for column in columns.values())] for row in rows])
    )


def _share(times: dict[str, list[float]]) -> Ratio:
    """Of the eigendecompositions in a consolidation."""
    return ratio(times["eigenvectors"], times["consolidation"])


def _drawn(found: dict[str, dict[str, list[float]]]) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    ways = (
        "rewc",
        "rewc whole",
        "rewc none",
        "rewc original",
        "paper",
        "ewc online",
        "ewc separate after 5",
        "ewc separate after 20",
    )
    for index, way in enumerate(ways):
        heights = [ratio(times[way], times["naive"]).median if way in times else 0 for times in found.values()]
        axes.bar([i + index * 0.105 for i in range(len(found))], heights, 0.095, label=way)
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
