"""The options of R-EWC, checked when they are given and not half-way through a stream."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

from avalanche_rewc.core import BASES, BasisFunction, ConvBasis, FisherKind, LayerChoice, RandomBasis, Space
from avalanche_rewc.core.checks import number, one_of, shown, whole_number
from avalanche_rewc.core.selection import check_choice

Mode = Literal["last", "separate", "online"]
DEFAULT_SAMPLES = 200
"""Of each class. Fewer make the basis and its diagonal noisy, which costs more accuracy than they save time."""
RANDOM_BASES = {"random": "both", "random_input": "input", "random_output": "output"}
UNORDERED_BASES = ("authors", "printed", *RANDOM_BASES)
"""Their columns are not in the order of importance, so that the first ones are nothing special."""


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
    rank: int | None
    normalize: bool
    seed: int | None

    def __post_init__(self) -> None:
        """Raise a ValueError that names the option and what it may be."""
        number("ewc_lambda", self.ewc_lambda)
        check_choice(self.layers)
        one_of("conv_basis", self.conv_basis, get_args(ConvBasis))
        one_of("space", self.space, get_args(Space))
        one_of("fisher", self.fisher, get_args(FisherKind))
        one_of("mode", self.mode, get_args(Mode))
        if not callable(self.basis):
            one_of("basis", self.basis, (*BASES, *RANDOM_BASES), " or a function of the two factors")
        whole_number("samples_per_class", self.samples_per_class, 1, "for every sample")
        whole_number("rank", self.rank, 1, "for whole bases")
        if self.rank is not None and self.basis in UNORDERED_BASES:
            raise ValueError(f"basis={shown(self.basis)} has no leading vectors: it needs rank=None, which takes all")
        if not isinstance(self.normalize, bool):
            raise ValueError(f"normalize={shown(self.normalize)} must be True or False")
        whole_number("seed", self.seed, 0, "to follow torch's initial seed")
        if self.mode == "online":
            if self.decay_factor is None:
                raise ValueError('mode="online" needs decay_factor, the weight of earlier importances, between 0 and 1')
            number("decay_factor", self.decay_factor, high=1.0)
        elif self.decay_factor is not None:
            raise ValueError(f'decay_factor={shown(self.decay_factor)} only has a meaning with mode="online"')

    def basis_function(self, seed: int) -> BasisFunction:
        """The basis option as a function; `seed` is for the random ones."""
        if callable(self.basis):
            return self.basis
        if self.basis in RANDOM_BASES:
            return RandomBasis(seed, RANDOM_BASES[self.basis])
        return BASES[self.basis]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, to be stored and compared; a function is known by its name."""
        return {option.name: _plain(getattr(self, option.name)) for option in fields(self)}


def _plain(value: Any) -> Any:
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, Real):  # numpy's numbers too
        return int(value) if isinstance(value, Integral) else float(value)
    return value if value is None or isinstance(value, str) else list(value)
