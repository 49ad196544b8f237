"""Avalanche's loggers by name."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from avalanche import logging
from avalanche.logging import WandBLogger

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
    except Exception as error:
        if type(error).__module__.startswith("wandb"):
            raise UserError(f"wandb: {error}. Run `wandb login`, or set WANDB_MODE=offline") from error
        raise


def _wandb(folder: Path, config: RunConfig) -> Any:
    return NumbersToWandB(
        project_name="avalanche-rewc",
        run_name=f"{config.stream} {config.method} {config.key[:6]}",
        dir=str(folder),
        config=config.to_dict(),
        params={"id": f"{config.key}-{uuid.uuid4().hex[:8]}"},
    )


class NumbersToWandB(WandBLogger):  # type: ignore[misc]
    """Avalanche's W&B logger, without the parts of it that newer versions of W&B no longer support.

    It asks `wandb.util` for an id (give one in `params`), compares values with a class of `wandb.viz`, and leaves its
    run open. All metrics here are numbers.
    """

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Send a number."""
        self.step = x_plot
        if isinstance(value, int | float):
            self.wandb.log({name: value}, step=x_plot)

    def close(self) -> None:
        """Finish the run."""
        self.wandb.finish()
