"""The options of R-EWC, checked when they are given and not half-way through a stream."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from avalanche_rewc.core import BASES, BasisFunction, ConvBasis, FisherKind, LayerChoice, RandomBasis, Space
from avalanche_rewc.core.selection import check_choice

Mode = Literal["last", "separate", "online"]
RANDOM_BASES = {"random": "both", "random_input": "input", "random_output": "output"}


@dataclass(frozen=True)
class Options:
    """See `REWCPlugin` for what they mean."""

    ewc_lambda: float
    layers: LayerChoice
    conv_basis: ConvBasis
    space: Space
    fisher: FisherKind
    samples_per_class: int | None
    mode: Mode
    decay_factor: float | None
    basis: str | BasisFunction
    seed: int | None

    def __post_init__(self) -> None:
        """Raise a ValueError that names the option and what it may be."""
        _number("ewc_lambda", self.ewc_lambda, 0.0, math.inf, "a finite number ≥ 0")
        check_choice(self.layers)
        _one_of("conv_basis", self.conv_basis, get_args(ConvBasis))
        _one_of("space", self.space, get_args(Space))
        _one_of("fisher", self.fisher, get_args(FisherKind))
        _one_of("mode", self.mode, get_args(Mode))
        if not callable(self.basis):
            _one_of("basis", self.basis, (*BASES, *RANDOM_BASES), " or a function of the two factors")
        per_class = self.samples_per_class
        if per_class is not None and (isinstance(per_class, bool) or not isinstance(per_class, int) or per_class < 1):
            raise ValueError(f"samples_per_class={per_class!r} must be a whole number ≥ 1, or None for every sample")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ValueError(f"seed={self.seed!r} must be a whole number, or None to follow torch's initial seed")
        if self.mode == "online":
            if self.decay_factor is None:
                raise ValueError('mode="online" needs decay_factor, the weight of earlier importances, between 0 and 1')
            _number("decay_factor", self.decay_factor, 0.0, 1.0, "a number between 0 and 1")
        elif self.decay_factor is not None:
            raise ValueError(f'decay_factor={self.decay_factor!r} only has a meaning with mode="online"')

    def basis_function(self, seed: int) -> BasisFunction:
        """The basis option as a function; `seed` is for the random ones."""
        if callable(self.basis):
            return self.basis
        if self.basis in RANDOM_BASES:
            return RandomBasis(seed, RANDOM_BASES[self.basis])
        return BASES[self.basis]


def _one_of(option: str, value: object, allowed: Sequence[str], more: str = "") -> None:
    if value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{option}={value!r} is not one of {', '.join(map(repr, allowed))}{more}{hint}")


def _number(option: str, value: object, low: float, high: float, what: str) -> None:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or not low <= number <= high:
        raise ValueError(f"{option}={value!r} must be {what}")
