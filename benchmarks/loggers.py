"""Avalanche's loggers by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.config import RunConfig
from benchmarks.names import UserError

LOGGERS = ("interactive", "csv", "tensorboard", "wandb")


@contextlib.contextmanager
def make_loggers(names: Sequence[str], folder: Path, config: RunConfig) -> Iterator[list[Any]]:
    """The loggers, closed at the end.

    Args:
        names: of `LOGGERS`.
        folder: for their files; made when one of them needs it.
        config: of the run; W&B shows it.
    """
    made: list[Any] = []
    with contextlib.ExitStack() as stack:
        for name in names:
            logger = _make(name, folder, config)
            close = getattr(logger, "close", None)
            if close is not None:
                stack.callback(close)
            made.append(logger)
        yield made


def _make(name: str, folder: Path, config: RunConfig) -> Any:
    from avalanche import logging

    if name != "interactive":
        folder.mkdir(parents=True, exist_ok=True)
    try:
        if name == "interactive":
            return logging.InteractiveLogger()
        if name == "csv":
            return logging.CSVLogger(str(folder))
        if name == "tensorboard":
            return logging.TensorboardLogger(str(folder))
        return _wandb(folder, config)
    except ImportError as error:
        raise UserError(f"--log {name} needs a package that is not installed: {error}") from error


def _wandb(folder: Path, config: RunConfig) -> Any:
    from avalanche.logging import WandBLogger

    logger = WandBLogger(
        project_name="avalanche-rewc",
        run_name=f"{config.stream} {config.method} {config.key[:6]}",
        dir=str(folder),
        config=config.to_dict(),
    )
    logger.close = logger.wandb.finish  # Avalanche leaves the run open
    return logger
