"""The configuration of one run: everything that changes a number, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.names import UserError, unknown

SCHEMA = 2
"""Version of the configuration and of result files. Raise it when old results no longer mean the same."""

KEY_LENGTH = 20


@dataclass(frozen=True)
class RunConfig:
    """One run in full: no default of the library or of a stream is left implicit, so that old results keep meaning.

    `benchmarks.plan.make_config` fills in a stream's protocol and a method's options. Where the data lie, the device
    and the number of threads are not part of it; result files record them beside it.
    """

    stream: str
    n_experiences: int
    method: str
    """Canonical name, such as `rewc-exact`; says the same as `options`."""
    strength: float | None
    """λ of the EWC family, α of LwF; None for methods without such a thing."""
    seed: int
    """Of the network's start, the order of samples, the held-out samples and all draws of a method."""
    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: Literal["adam", "sgd"] = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_drop_epoch: int | None = None
    """In every task the learning rate is divided by `lr_drop_factor` from this epoch on."""
    lr_drop_factor: float = 5.0
    reset_optimizer: bool = True
    """A fresh optimizer for each task, as in the paper."""
    loss: Literal["new-classes-bce", "cross-entropy"] = "new-classes-bce"
    class_order: Literal["natural", "shuffled"] = "natural"
    """"shuffled" draws an order from the run's seed."""
    validation: float = 0.0
    """Share of every class's training samples that is held out, for choosing a strength."""
    model: Mapping[str, Any] = field(default_factory=dict)
    stream_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the method, in full."""
    fisher_layer: str | None = None
    """Keep the whole Fisher matrix of this layer after the first task, before and after rotation (small layers)."""

    def __post_init__(self) -> None:
        """Raise a UserError that names the field."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown(f"{name}:", str(getattr(self, name)), allowed)
        for name in ("n_experiences", "epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value!r} must be a whole number ≥ 1")
        for name in ("learning_rate", "lr_drop_factor"):
            if not _finite(getattr(self, name)) or getattr(self, name) <= 0:
                raise UserError(f"{name}={getattr(self, name)!r} must be a number > 0")
        for name in ("weight_decay", "momentum"):
            if not _finite(getattr(self, name)) or getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)!r} must be a number ≥ 0")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UserError(f"seed={self.seed!r} must be a whole number ≥ 0")
        drop = self.lr_drop_epoch
        if drop is not None and (isinstance(drop, bool) or not isinstance(drop, int) or drop < 0):
            raise UserError(f"lr_drop_epoch={drop!r} must be a whole number ≥ 0")
        if self.strength is not None and not (_finite(self.strength) and self.strength >= 0):
            raise UserError(f"strength={self.strength!r} must be a finite number ≥ 0")
        if not _finite(self.validation) or not 0 <= self.validation < 1:
            raise UserError(f"validation={self.validation!r} must be a share between 0 and 1")
        if self.momentum and self.optimizer != "sgd":
            raise UserError(f"momentum={self.momentum!r} only has a meaning with optimizer='sgd'")

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it. Numbers that JSON would write in two ways (100 and 100.0) are made one."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in FLOATS:
            if found[name] is not None:
                found[name] = float(found[name])
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        """The inverse of `to_dict`."""
        names = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("setting", name, names)
        return cls(**values)

    @property
    def key(self) -> str:
        """Name of the run: a hash of its full configuration."""
        text = json.dumps({"schema": SCHEMA, **self.to_dict()}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]

    def but(self, **changes: Any) -> RunConfig:
        """A copy with changes."""
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        strength = "" if self.strength is None else f" {self.strength:g}"
        return f"{self.stream} T={self.n_experiences} {self.method}{strength} seed {self.seed}"


CHOICES: dict[str, tuple[str, ...]] = {
    "optimizer": ("adam", "sgd"),
    "loss": ("new-classes-bce", "cross-entropy"),
    "class_order": ("natural", "shuffled"),
}
FLOATS = ("strength", "learning_rate", "momentum", "weight_decay", "lr_drop_factor", "validation")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
