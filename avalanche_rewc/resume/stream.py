"""What tells one stream from another: a checkpoint must not go on with other data."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from avalanche_rewc.resume.generators import generator_states, set_generator_states

TOLERANCE = 1e-3
"""Relative. Another processor may decode and resize a picture to other last digits."""


def fingerprint(stream: Sequence[Any]) -> dict[str, Any]:
    """Classes, task labels, size and a hash of the labels in their order, for each experience.

    An element that is itself a sequence of experiences (what joint training learns in one step) counts as all of them.
    """
    return {f"experience {i}": _of_step(step) for i, step in enumerate(stream)}


def looks(stream: Sequence[Any]) -> dict[str, list[list[float]]]:
    """What a few samples of each experience look like: labels alone do not tell two permutations of pixels apart.

    Of the first, the middle and the last sample, as evaluation sees them, the norm and the projection on a fixed
    direction. The global generators are left as they were, and what a transform draws from them is always the same.
    """
    states = generator_states()
    try:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return {f"experience {i}": _look_of(step) for i, step in enumerate(stream)}
    finally:
        set_generator_states(states)


def changed_looks(here: dict[str, list[list[float]]], there: dict[str, list[list[float]]]) -> list[str]:
    """The experiences whose samples look different, in words."""
    return [
        f"stream: {name}: some of its samples have other values than they had"
        for name in here
        if name in there and not _alike(here[name], there[name])
    ]


def _look_of(step: Any) -> list[list[float]]:
    found = []
    for experience in _experiences(step):
        dataset = experience.dataset
        dataset = dataset.eval() if hasattr(dataset, "eval") else dataset
        for index in sorted({0, len(dataset) // 2, len(dataset) - 1}):
            x = dataset[index][0] if 0 <= index < len(dataset) else None
            if isinstance(x, torch.Tensor):
                values = x.detach().cpu().double().flatten()
                direction = torch.arange(1.0, len(values) + 1, dtype=torch.float64).cos()
                found.append([float(values.norm()), float(values @ direction)])
    return found


def _alike(here: list[list[float]], there: list[list[float]]) -> bool:
    if len(here) != len(there):
        return False
    for (norm, shadow), (other_norm, other_shadow) in zip(here, there, strict=True):
        scale = TOLERANCE * max(norm, other_norm)
        if math.isfinite(scale) and max(abs(norm - other_norm), abs(shadow - other_shadow)) > scale:
            return False
    return True


def _experiences(step: Any) -> list[Any]:
    return list(step) if isinstance(step, Iterable) else [step]


def _of_step(step: Any) -> dict[str, Any]:
    classes: set[int] = set()
    tasks: set[int] = set()
    labels = hashlib.sha256()
    size = 0
    for experience in _experiences(step):
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
