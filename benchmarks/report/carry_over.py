"""Does a λ carry over? It is chosen on all streams but one, and tried on that one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.names import UserError
from benchmarks.report.collect import MethodRuns, Setting, over_seeds
from benchmarks.report.tables import Table, percent


def leave_one_out(settings: Sequence[Setting], labels: Sequence[str]) -> Table:
    """For every stream and method: the λ that is best for the other streams, what it gives here, and the stream's own.

    A λ is scored on held-out samples by the mean over streams of its average accuracy, divided by that of the stream's
    best λ, so that easy streams do not outvote hard ones. Only λ that were run on all streams take part.
    """
    rows = []
    for label in labels:
        methods = [_method(setting, label) for setting in settings]
        common = sorted(set.intersection(*({s for s in m.by_strength if s is not None} for m in methods)))
        if not common:
            raise UserError(f"no strength of {label} was run on all of {', '.join(s.title for s in settings)}")
        shares = [_shares(method, common) for method in methods]
        for left_out, (setting, method) in enumerate(zip(settings, methods, strict=True)):
            others = [share for index, share in enumerate(shares) if index != left_out]
            best = max(common, key=lambda strength: fmean(share[strength] for share in others))
            rows.append([setting.stream, label, f"{best:g}", _accuracy(method, best), *_own(method)])
    header = ["left out", "method", "λ of the others", "with it", "own λ", "with its own"]
    note = "Test accuracy in %, average over tasks. The λ of the others is one that was run on all streams."
    return Table("One λ for streams it was not chosen on", header, sorted(rows), note)


def _method(setting: Setting, label: str) -> MethodRuns:
    method = setting.method(label)
    if method is None:
        raise UserError(f"{label} was not run on {setting.title}")
    return method


def _shares(method: MethodRuns, strengths: Sequence[float]) -> dict[float, float]:
    """Accuracy on held-out samples at each strength, as a share of the best; over the seeds that all were run with."""
    runs = method.by_strength
    seeds = set.intersection(*({run["config"]["seed"] for run in runs[strength]} for strength in strengths))
    scores = {
        strength: fmean(
            run["validation"]["average_accuracy"] for run in runs[strength] if run["config"]["seed"] in seeds
        )
        for strength in strengths
    }
    return {strength: score / max(scores.values()) for strength, score in scores.items()}


def _own(method: MethodRuns) -> tuple[str, str]:
    strength = method.honest_strength
    assert strength is not None  # methods without one are refused above
    return f"{strength:g}", _accuracy(method, strength)


def _accuracy(method: MethodRuns, strength: float) -> str:
    return percent(over_seeds(method.by_strength[strength], lambda run: run["average_accuracy"]))
