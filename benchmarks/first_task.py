"""The first task, learned once for all methods that learn it alike.

Fine-tuning, EWC, R-EWC and LwF do nothing in the first task but train, and a run seeds each task by itself. So all of
them, at every strength, have the same network after it, bit for bit. It is trained by the first run that needs it and
kept in a file; the other runs start from there. With two tasks that is half of the time of a sweep.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from pathlib import Path
from typing import Any

from avalanche.training.plugins import SupervisedPlugin

from avalanche_rewc.resume.file import Damaged, read_checked, write_checked
from avalanche_rewc.resume.generators import generator_states, set_generator_states
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
    # Other code gives other numbers, and their last bits depend on the machine as well.
    made_by = {**machine.describe(), **versions()}
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
        if (kept := self._kept()) is not None:
            strategy.model.load_state_dict(kept["model"])
            set_generator_states(kept["generators"])
            self.seconds_saved = kept["seconds"]
            self._epochs, strategy.train_epochs = strategy.train_epochs, 0

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Store what was trained."""
        if strategy.clock.train_exp_counter > 0:
            return
        if self._epochs is not None:
            strategy.train_epochs, self._epochs = self._epochs, None
            return
        kept = {
            "model": strategy.model.state_dict(),
            "generators": generator_states(),
            "seconds": time.perf_counter() - self._begun,
        }
        try:
            write_checked(self.path, kept)  # two runs may store the same at once
        except OSError as error:
            warnings.warn(f"the first task is not kept for other runs: {error}", RuntimeWarning, stacklevel=2)

    def _kept(self) -> dict[str, Any] | None:
        """What another run has left; a damaged file is learned, and written, anew."""
        if not self.path.exists():
            return None
        try:
            return read_checked(self.path)
        except (Damaged, ValueError) as error:
            warnings.warn(f"{self.path} is learned anew: {error}", RuntimeWarning, stacklevel=2)
            return None
