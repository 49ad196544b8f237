"""RESULTS.md shows what the kept result files say."""

from statistics import fmean, stdev

import jinja2
import pytest

from benchmarks import findings
from benchmarks.findings import Findings, kept
from benchmarks.grid import load_sweep
from benchmarks.names import UserError
from benchmarks.report.collect import Value, paired
from benchmarks.selection import first_phase

CASE = ("table2", "mnist", 2)


def runs_of(method, strength):
    return [
        r
        for r in kept("table2")
        if (r["config"]["stream"], r["config"]["method"], r["config"]["strength"]) == ("mnist", method, strength)
    ]


def of(method, strength):
    return {r["config"]["seed"]: r["average_accuracy"] for r in runs_of(method, strength)}


def test_the_page_is_up_to_date():
    assert findings.main(["--check"]) == 0, "run `make results`"
    text = findings.PAGE.read_text(encoding="utf-8")
    for name in findings.FIGURES.glob("table*.png"):
        assert name.name in text, "a figure nobody shows"


def test_values_are_those_of_the_files():
    """Made again by hand, at the strength that the page says was chosen."""
    page = Findings(draw=False)
    chosen = {method: float(page.strength(*CASE, method)) for method in ("rewc-exact", "rewc-none-exact")}
    ours, theirs = (of(method, strength) for method, strength in chosen.items())
    assert len(ours) == len(theirs) == 5
    assert page.average(*CASE, "rewc-exact") == f"{100 * fmean(ours.values()):.1f} ± {100 * stdev(ours.values()):.1f}"
    held_out = [run["validation"]["average_accuracy"] for run in runs_of("rewc-exact", chosen["rewc-exact"])]
    assert page.held_out(*CASE, "rewc-exact") == f"{100 * fmean(held_out):.1f} ± {100 * stdev(held_out):.1f}"
    assert page.points(*CASE, "rewc-exact") == pytest.approx(100 * fmean(ours.values()))
    differences = [100 * (ours[seed] - theirs[seed]) for seed in ours]
    expected = f"{fmean(differences):.1f} ± {stdev(differences):.1f}"
    assert page.gain(*CASE, "rewc-exact", "rewc-none-exact") == f"+{expected}"
    assert page.gain(*CASE, "rewc-none-exact", "rewc-exact") == f"−{expected}"


def test_a_typing_error_in_the_template_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(findings, "TEMPLATE", tmp_path / "template.md")
    for text, error in (
        ("{{ averag(1) }}", jinja2.UndefinedError),
        ('{{ average("table9", "mnist", 2, "rewc") }}', UserError),
        ('{{ average("table2", "mnist", 3, "rewc") }}', UserError),
        ('{{ average("table2", "mnist", 2, "rewc-exakt") }}', UserError),
    ):
        findings.TEMPLATE.write_text(text)
        with pytest.raises(error):
            findings.written(draw=False)


@pytest.mark.parametrize("sweep", [path.stem for path in findings.KEPT.glob("*.jsonl")])
def test_kept_results_are_those_of_the_shipped_sweep(sweep):
    """So the command beside a table makes them again."""
    keys = {result["key"] for result in kept(sweep)}
    seeds = sorted({result["config"]["seed"] for result in kept(sweep)})
    shipped = load_sweep(sweep, seeds=seeds)
    assert keys <= {run.key for run in shipped.runs}
    missing = [str(run) for run in first_phase(shipped) if run.key not in keys]
    assert not missing


def test_a_bar_within_the_seeds_spread_is_told():
    """Student's t of five seeds: the mean is known to ± 2.78 · std / √5."""
    value = Value.of([0.94, 0.95, 0.96, 0.97, 0.98])
    assert 100 * value.margin == pytest.approx(2.78 * 1.5811 / 5**0.5, rel=1e-3)
    assert findings._judged("96", value, 90.0) == "96: **yes**"
    assert findings._judged("96", value, 95.0) == "96: yes, within the seeds' spread"
    assert findings._judged("96", value, 97.0) == "96: no, within the seeds' spread"
    assert findings._judged("96", value, 99.0) == "96: no"
    assert Value.of([0.94]).margin is None


def test_gains_are_of_common_seeds():
    above, below = ([{"config": {"seed": s}, "average_accuracy": a} for s, a in runs] for runs in (
        [(0, 0.9), (1, 0.8), (7, 0.1)], [(1, 0.7), (0, 0.6), (8, 0.9)],
    ))  # fmt: skip
    assert paired(above, below).mean == pytest.approx(0.2)
    assert paired(above, below).count == 2
    assert paired(above[2:], below) is None
