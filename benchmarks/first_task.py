"""The first task, learned once for all methods that learn it alike.

Fine-tuning, EWC, R-EWC and LwF do nothing in the first task but train, and a run seeds each task by itself. So all of
them, at every strength, have the same network after it, bit for bit. It is trained by the first run that needs it and
kept in a file; the other runs start from there. With two tasks that is half of the time of a sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.training.plugins import SupervisedPlugin

from benchmarks.config import SCHEMA, RunConfig
from benchmarks.machine import Machine, versions
from benchmarks.methods import find_method

APART = ("method", "strength", "options", "fisher_layer")
"""Settings that play no part before the end of the first task."""
SHARED = ("naive", "frozen", "ewc", "lwf", "lwf-sigmoid", "rewc-none", "rewc-conv", "rewc-fc", "rewc-all", "rewc")


def first_task_path(config: RunConfig, machine: Machine) -> Path | None:
    """Where the network after the first task is kept; None if the run has to learn it by itself."""
    if machine.first_tasks is None or find_method(config.method).family not in SHARED or not config.reset_optimizer:
        return None
    settings = {name: value for name, value in config.to_dict().items() if name not in APART}
    # The last bits of a number depend on these as well.
    made_by = {**machine.describe(), "torch": versions()["torch"], "library": versions()["avalanche-rewc"]}
    text = json.dumps([SCHEMA, settings, made_by], sort_keys=True)
    return Path(machine.first_tasks) / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.pt"


class FirstTask(SupervisedPlugin):  # type: ignore[misc]
    """Takes the first task from a file, or puts it there. Runs before the method's own plug-in.

    Kept are the weights, the states of the generators (Avalanche's EWC draws from them after training) and the seconds
    that training took.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.seconds_saved = 0.0
        self._epochs: int | None = None
        self._begun = 0.0

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Load, if there is something to load, and leave out the epochs."""
        if strategy.clock.train_exp_counter > 0:
            return
        self._begun = time.perf_counter()
        if self.path.exists():
            kept = torch.load(self.path, weights_only=True, map_location=strategy.device)
            strategy.model.load_state_dict(kept["model"])
            torch.set_rng_state(kept["torch"].cpu())
            np.random.set_state({**kept["numpy"], "state": _as_array(kept["numpy"]["state"])})
            version, internal, gauss = kept["random"]
            random.setstate((version, tuple(internal), gauss))
            self.seconds_saved = kept["seconds"]
            self._epochs, strategy.train_epochs = strategy.train_epochs, 0

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Store what was trained."""
        if strategy.clock.train_exp_counter > 0:
            return
        if self._epochs is not None:
            strategy.train_epochs, self._epochs = self._epochs, None
            return
        numpy_state = np.random.get_state(legacy=False)
        kept = {
            "model": strategy.model.state_dict(),
            "torch": torch.get_rng_state(),
            "numpy": {**numpy_state, "state": _as_list(numpy_state["state"])},
            "random": list(random.getstate()),
            "seconds": time.perf_counter() - self._begun,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                torch.save(kept, file)
            os.replace(temporary, self.path)  # two runs may store the same at once
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def _as_list(state: dict[str, Any]) -> dict[str, Any]:
    """numpy's state without an array, which a safe `torch.load` would refuse."""
    return {**state, "key": state["key"].tolist()}


def _as_array(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "key": np.array(state["key"], dtype=np.uint32)}
