"""Where the runs of a sweep are executed: processes of this machine, or a Ray cluster.

A backend takes configurations from an iterator when it has room for them, and yields one result or failure for each, in
the order in which they are done. Only its caller writes files. Closing it (Ctrl-C does) ends the runs under way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from benchmarks.backends.local import run_local
from benchmarks.backends.on_ray import run_on_ray
from benchmarks.config import RunConfig
from benchmarks.machine import Machine


class Backend(Protocol):
    """See the module."""

    def __call__(self, configs: Iterator[RunConfig], machine: Machine, jobs: int) -> Iterator[dict[str, Any]]:
        """Run everything with `jobs` runs at a time."""


BACKENDS: dict[str, Backend] = {"loky": run_local, "ray": run_on_ray}
