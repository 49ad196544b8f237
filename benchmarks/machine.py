"""What a run needs from the machine it is on. None of it is part of a run's configuration."""

from __future__ import annotations

import functools
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from avalanche_rewc import __version__
from benchmarks.names import UserError


@dataclass(frozen=True)
class Machine:
    """Where the data lie and what computes.

    The same configuration gives the same numbers, bit for bit, on the same kind of machine with the same `threads`:
    sums are added up in another order by two threads than by one.
    """

    data_root: str | None = None
    device: str = "cpu"
    threads: int = 1
    first_tasks: str | None = None
    """Folder of networks that have learned the first task, see `benchmarks.first_task`; None: every run learns it."""
    checkpoints: str | None = None
    """Folder where runs store what they have learned after each task, to go on from there; None: they do not."""

    def prepare(self) -> None:
        """Set torch's threads; refuse a device that is not there before anything is loaded."""
        torch.set_num_threads(self.threads)
        # Gradients of samples that are learned fade below 1e-38, and Adam squares them: without this, processors that
        # compute with such numbers step by step need three times as long for a task (measured, Stanford-40 features).
        torch.set_flush_denormal(True)
        try:
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"device {self.device!r} cannot be used here: {reason}. Leave it out for cpu") from error

    def describe(self) -> dict[str, Any]:
        """For result files: nothing that names the machine itself."""
        return {"device": self.device, "threads": self.threads, "processor": platform.machine()}


_NO_CODE = (":(top,exclude)benchmarks/results", ":(top,exclude)docs", ":(top,exclude,glob)**/*.md")
"""What a measurement itself changes, and prose."""


@functools.cache
def versions() -> dict[str, str | None]:
    """Versions of all that takes part in a number."""
    found: dict[str, str | None] = {"python": platform.python_version(), "avalanche-rewc": __version__}
    for package in ("torch", "avalanche-lib", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    found["commit"] = _commit()
    return found


def _commit() -> str | None:
    """The commit of this clone, marked if code was changed since; None outside a repository."""
    commit = _git("describe", "--always", "--abbrev=12", "--match=")
    # `describe --dirty` would lock the index, and a run killed at that moment would leave it locked.
    changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--", ":/", *_NO_CODE)
    return f"{commit}-dirty" if commit and changed else commit


def processor() -> str:
    """Its model, which many machines share; where the system does not tell, its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _git(*words: str) -> str | None:
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
