"""Does a choice carry over? A λ, or a method with its λ, is chosen on all streams but one, and tried on that one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from benchmarks.names import UserError
from benchmarks.report.collect import MethodRuns, Setting, over_seeds
from benchmarks.report.tables import Table, percent

Way = tuple[str, float]
"""A method and its λ."""


def leave_one_out(settings: Sequence[Setting], labels: Sequence[str], *, together: bool = False) -> Table:
    """For every stream: what is best for the other streams, what that gives here, and the stream's own choice.

    A choice is scored on held-out samples by the mean over streams of its average accuracy, divided by that of the
    stream's best choice, so that easy streams do not outvote hard ones. Only λ that were run on all streams take part.

    Args:
        together: choose the method as well, and not only a λ for each of them.
    """
    rows = []
    for among in [labels] if together else [[label] for label in labels]:
        common = _common(settings, among)
        shares = [_shares(setting, common) for setting in settings]
        for left_out, setting in enumerate(settings):
            others = [share for index, share in enumerate(shares) if index != left_out]
            best = max(common, key=lambda way: fmean(share[way] for share in others))
            own = _shown(setting, _own(setting, among))
            rows.append([setting.stream, *_shown(setting, best), *(own if together else own[1:])])
    own_header = ["own choice", "its λ", "with its own"] if together else ["own λ", "with its own"]
    header = ["left out", "best for the others" if together else "method", "λ of the others", "with it", *own_header]
    note = "Test accuracy in %, average over tasks. The λ of the others is one that was run on all streams."
    return Table("One choice for streams it was not made on", header, sorted(rows), note)


def _own(setting: Setting, labels: Sequence[str]) -> Way:
    """The best on the stream's own held-out samples, each method at the λ that is chosen with them."""
    strengths = {label: _method(setting, label).honest_strength for label in labels}
    scores = _scores(setting, [(label, strength) for label, strength in strengths.items() if strength is not None])
    return max(scores, key=lambda way: scores[way])


def _common(settings: Sequence[Setting], labels: Sequence[str]) -> list[Way]:
    found = []
    for label in labels:
        strengths = [{s for s in _method(setting, label).by_strength if s is not None} for setting in settings]
        common = sorted(set.intersection(*strengths))
        if not common:
            raise UserError(f"no strength of {label} was run on all of {', '.join(s.title for s in settings)}")
        found += [(label, strength) for strength in common]
    return found


def _shown(setting: Setting, way: Way) -> list[str]:
    label, strength = way
    runs = _method(setting, label).by_strength[strength]
    return [label, f"{strength:g}", percent(over_seeds(runs, lambda run: run["average_accuracy"]))]


def _method(setting: Setting, label: str) -> MethodRuns:
    method = setting.method(label)
    if method is None:
        raise UserError(f"{label} was not run on {setting.title}")
    return method


def _scores(setting: Setting, ways: Sequence[Way]) -> dict[Way, float]:
    """Accuracy on held-out samples, over the seeds that all were run with."""
    runs = {(label, strength): _method(setting, label).by_strength[strength] for label, strength in ways}
    seeds = set.intersection(*({run["config"]["seed"] for run in found} for found in runs.values()))
    return {
        way: fmean(run["validation"]["average_accuracy"] for run in found if run["config"]["seed"] in seeds)
        for way, found in runs.items()
    }


def _shares(setting: Setting, ways: Sequence[Way]) -> dict[Way, float]:
    """The same as a share of the best."""
    scores = _scores(setting, ways)
    return {way: score / max(scores.values()) for way, score in scores.items()}
