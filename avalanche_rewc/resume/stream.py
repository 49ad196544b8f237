"""What tells one stream from another: a checkpoint must not go on with other data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any


def fingerprint(stream: Sequence[Any]) -> dict[str, Any]:
    """Classes, task labels, size and a hash of the labels in their order, for each experience.

    An element that is itself a sequence of experiences (what joint training learns in one step) counts as all of them.
    """
    return {f"experience {i}": _of_step(step) for i, step in enumerate(stream)}


def _of_step(step: Any) -> dict[str, Any]:
    experiences = list(step) if isinstance(step, Iterable) else [step]
    classes: set[int] = set()
    tasks: set[int] = set()
    labels = hashlib.sha256()
    size = 0
    for experience in experiences:
        classes |= {int(label) for label in getattr(experience, "classes_in_this_experience", ())}
        tasks |= {int(label) for label in getattr(experience, "task_labels", ())}
        size += len(experience.dataset)
        targets = getattr(experience.dataset, "targets", ())
        labels.update(",".join(str(int(label)) for label in targets).encode())
    return {
        "classes": sorted(classes),
        "task_labels": sorted(tasks),
        "samples": size,
        "hash of its labels": labels.hexdigest()[:16],
    }
