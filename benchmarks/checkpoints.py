"""Where a run that was killed finds what it had learned."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from benchmarks.config import RunConfig
from benchmarks.first_task import SHARED
from benchmarks.machine import Machine, versions
from benchmarks.methods import find_method

RESUMED = SHARED
"""Joint training is a single step; the others keep networks or samples that a checkpoint does not hold."""


def checkpoint_folder(config: RunConfig, machine: Machine) -> Path | None:
    """Of one run on one kind of machine with one version of everything; None if it starts from the beginning."""
    if machine.checkpoints is None or find_method(config.method).family not in RESUMED:
        return None
    # Another version would give other numbers, and plug-ins differ with and without kept first tasks.
    made_by = [machine.describe(), versions(), machine.first_tasks is not None]
    made_by_key = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:8]
    return Path(machine.checkpoints) / f"{config.key}-{made_by_key}"


def discard(config: RunConfig, machine: Machine) -> None:
    """Remove the checkpoints of a run whose result is stored."""
    folder = checkpoint_folder(config, machine)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
