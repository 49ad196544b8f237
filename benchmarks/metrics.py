"""Numbers from the accuracy matrix of a run.

Row k, column j: accuracy on task j after learning task k, single head over all classes seen so far, no task labels.
None: task j was not learned yet (a growing head has no outputs for its classes), or nothing was evaluated then (joint
training has its last row only).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Matrix = list[list[float | None]]

_EXPERIENCE = re.compile(r"^(?P<metric>\w+)/eval_phase/(?P<stream>\w+)_stream/Task\d+/Exp(?P<task>\d+)$")


def per_task(metrics: Mapping[str, Any], name: str, stream: str, tasks: int) -> list[float | None]:
    """One value per task of a metric that Avalanche's `EvaluationPlugin` gives for experiences, e.g. `Top1_Acc_Exp`."""
    found: list[float | None] = [None] * tasks
    for key, value in metrics.items():
        match = _EXPERIENCE.match(key)
        if match and match["metric"] == name and match["stream"] == stream:
            found[int(match["task"])] = float(value)
    return found


def record(accuracy: Matrix) -> dict[str, Any]:
    """The matrix and its last average."""
    return {"accuracy": accuracy, "average_accuracy": averages(accuracy)[-1]}


def averages(accuracy: Matrix) -> list[float | None]:
    """Average accuracy over the tasks learned so far, after each task."""
    return [_mean(row[: k + 1]) for k, row in enumerate(accuracy)]


def backward_transfer(accuracy: Matrix) -> float | None:
    """Mean over all tasks but the last of (accuracy at the end − accuracy just after learning the task)."""
    last = len(accuracy) - 1
    changes = []
    for task in range(last):
        first, final = accuracy[task][task], accuracy[last][task]
        if first is None or final is None:
            return None
        changes.append(final - first)
    return _mean(changes)


def forgetting(accuracy: Matrix) -> float | None:
    """Avalanche's forgetting: backward transfer with the other sign."""
    transfer = backward_transfer(accuracy)
    return None if transfer is None else -transfer


def _mean(values: Sequence[float | None]) -> float | None:
    if not values or any(value is None for value in values):
        return None
    return sum(value for value in values if value is not None) / len(values)
