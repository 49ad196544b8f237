"""Runs on a Ray cluster: the one at RAY_ADDRESS, else one of this machine alone.

The code of this clone is sent along, so that all nodes run the same; the data must lie at the same place everywhere.
Results come back to the caller: nodes need no common file system.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import avalanche_rewc
from benchmarks.config import RunConfig
from benchmarks.execute import attempt, failure
from benchmarks.machine import Machine
from benchmarks.names import UserError

RETRIES = 3
"""Ray starts a run again, elsewhere, when its worker or node dies; so often at most."""
POLL_SECONDS = 1.0
CONNECT_SECONDS = 5.0


def run_on_ray(configs: Iterator[RunConfig], machine: Machine, jobs: int) -> Iterator[dict[str, Any]]:
    """See `benchmarks.backends`. With a cluster at RAY_ADDRESS its processors decide how many runs go at a time."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--backend ray needs Ray: pip install 'avalanche-rewc[ray]'") from error

    address = os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    local = {"num_cpus": jobs * machine.threads, "include_dashboard": False} if address == "local" else {}
    packages = [Path(__file__).resolve().parents[1], Path(avalanche_rewc.__file__).resolve().parent]
    try:
        ray.init(
            address=address,
            runtime_env={
                "py_modules": [str(package) for package in packages],
                "env_vars": {"OMP_NUM_THREADS": str(machine.threads)},
                "excludes": ["results", "__pycache__"],
            },
            log_to_driver=False,
            logging_level=logging.ERROR,
            **local,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"Ray at {address!r} cannot be used: {error}") from error
    remote = ray.remote(num_cpus=machine.threads, max_retries=RETRIES)(attempt)
    under_way: dict[Any, RunConfig] = {}
    try:
        while True:
            room = max(1, int(ray.cluster_resources().get("CPU", 1)) // machine.threads)
            while len(under_way) < room and (config := next(configs, None)) is not None:
                under_way[remote.remote(config, machine)] = config
            if not under_way:
                break
            done, _ = ray.wait(list(under_way), timeout=POLL_SECONDS)
            for reference in done:
                config = under_way.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    message = f"its worker or node died {RETRIES + 1} times ({type(error).__name__})"
                    yield failure(config, machine, message, str(error))
    finally:
        for reference in under_way:
            ray.cancel(reference, force=True)
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes, with warnings, before it says that nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "local", "auto"
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"nobody answers at RAY_ADDRESS {address!r} ({error}); without it a local Ray is used"
        ) from error
