"""A layer whose parameter is the rotated weight: ROTATE and COMBINE of the paper's Algorithm 1.

While a layer is rotated, its `weight` **Parameter** holds `W'`: that is what the optimizer walks in. To everybody else
it stays the layer it was. `layer.weight` reads as `W = U2 W' U1ᵀ`; `state_dict` has the plain keys and values; a deep
copy or a pickle of it is a plain layer; its class is a subclass of the user's, with the same name.

The forward pass applies each basis where that is cheaper: to the weight, or to the activations. For B samples with P
positions, m outputs, q inputs and K kernel positions the multiplications are

    input side:    B · P_in · q²    (activations)     m · q² · K    (weight)
    output side:   B · P_out · m²   (activations)     m² · q · K    (weight)

in the forward pass (with a rank of k, 2·k in place of one factor q or m of a square), and as many again in the backward
pass, but for the input side of a layer whose input needs no gradient, such as the first one. So a side goes to the
activations if there are fewer of them than there are rows of the weight on that side, and the input side of a first
layer if there are fewer than twice as many.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core import geometry
from avalanche_rewc.core.reflections import Reflections
from avalanche_rewc.core.rotation import Matrix, Rotation

_STATE = "_rewc_rotation"
_PLAIN_FORWARDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)
Rows = tuple[float, float]
ON_WEIGHTS: Rows = (float("inf"), float("inf"))


@dataclass(frozen=True)
class _State:
    rotation: Rotation
    plain_class: type[nn.Module]
    input_kernel: Matrix | None
    """`U1ᵀ` if the input side acts on the activations."""
    first_kernel: Matrix | None
    """The same for inputs that need no gradient."""
    output_kernel: Matrix | None
    """`U2` if the output side acts on the activations."""


def is_rotated(module: nn.Module) -> bool:
    """Whether the layer's Parameter holds a rotated weight now."""
    return _STATE in module.__dict__


def rotate_layer(module: nn.Module, rotation: Rotation, rows: Rows = ON_WEIGHTS, known: Tensor | None = None) -> None:
    """ROTATE: from now on the layer's Parameter, still the same object, holds `W' = U2ᵀ W U1`.

    Args:
        rows: how many input and output rows one step has, `(B · P_in, B · P_out)`; by default both bases are applied
            to the weight.
        known: `W'` to the bit, from before a pause in which the layer was plain; computed by default.
    """
    if is_rotated(module):
        raise RuntimeError("this layer is rotated already; merge it first")
    weight = geometry.weight_of(module)
    rotation = rotation.to(weight)
    with torch.no_grad():
        weight.copy_(rotation.to_rotated(weight) if known is None else known)
    on_input, on_first, on_output = _activation_sides(module, rotation, rows)
    kernel = _contiguous(rotation.input_matrix.mT) if on_first else None
    module.__dict__[_STATE] = _State(
        rotation, type(module), kernel if on_input else None, kernel, rotation.output_matrix if on_output else None
    )
    module.__class__ = _rotated_class(type(module))  # type: ignore[arg-type]


def _contiguous(matrix: Matrix) -> Matrix:
    return matrix.contiguous() if isinstance(matrix, Tensor) else Reflections(*(part.contiguous() for part in matrix))


def merge_layer(module: nn.Module) -> Tensor:
    """COMBINE: the layer is plain again, its Parameter holds `W = U2 W' U1ᵀ`. Returns a copy of `W'`."""
    if not is_rotated(module):
        raise RuntimeError("this layer is not rotated")
    state: _State = module.__dict__.pop(_STATE)
    module.__class__ = state.plain_class
    parameter = geometry.weight_of(module)
    known = parameter.detach().clone()
    with torch.no_grad():
        parameter.copy_(state.rotation.to_original(known))
    return known


def _activation_sides(module: nn.Module, rotation: Rotation, rows: Rows) -> tuple[bool, bool, bool]:
    """Whether the input basis, that of inputs without gradient, and the output basis are applied to the activations."""
    weight = geometry.weight_of(module)
    if type(module).forward not in _PLAIN_FORWARDS or rotation.mixes_positions(weight):
        # A forward of the user's own reads `self.weight`; patches exist only inside the kernel.
        return False, False, False
    if weight.dtype != rotation.input_basis.dtype:
        return False, False, False  # activations in 16 bits; the bases are not
    m, q = rotation.output_basis.shape[1], rotation.input_basis.shape[1]
    kernel = geometry.kernel_positions(module)
    return rows[0] < m * kernel, rows[0] < 2 * m * kernel, rows[1] < q * kernel


class _RotatedLayer:
    """In front of the user's class in the method resolution order of a rotated layer."""

    @property
    def weight(self) -> Tensor:
        state: _State = self.__dict__[_STATE]
        return state.rotation.to_original(geometry.weight_of(self))  # type: ignore[arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        state: _State = self.__dict__[_STATE]
        if state.first_kernel is None and state.output_kernel is None:  # so neither is the other input kernel
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        return _forward_on_activations(self, state, *args, **kwargs)  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and name not in self.__dict__:
            raise RuntimeError(
                "this layer is rotated while it trains, so its weight cannot be replaced; use load_state_dict, or "
                "do it between experiences"
            )
        super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        destination[prefix + "weight"] = self.weight if keep_vars else self.weight.detach()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        state: _State = self.__dict__[_STATE]
        key = prefix + "weight"
        parameter = geometry.weight_of(self)  # type: ignore[arg-type]
        if key in state_dict and state_dict[key].shape == parameter.shape:
            state_dict = {**state_dict, key: state.rotation.to_rotated(state_dict[key].to(parameter))}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        plain_class = self.__dict__[_STATE].plain_class
        plain: nn.Module = plain_class.__new__(plain_class)
        memo[id(self)] = plain
        for key, value in self.__dict__.items():
            if key != _STATE:
                plain.__dict__[key] = copy.deepcopy(value, memo)
        parameter = geometry.weight_of(plain)
        with torch.no_grad():
            parameter.copy_(self.weight)
        return plain

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (copy.deepcopy(self),)


def _itself(plain: nn.Module) -> nn.Module:
    """A pickled rotated layer is a pickled plain one behind this call."""
    return plain


def _forward_on_activations(module: nn.Module, state: _State, input: Tensor) -> Tensor:
    """`y = U2 (W' (U1ᵀ x)) + b` with each basis on its chosen side."""
    x, weight = input, geometry.weight_of(module)
    bias: Tensor | None = module.bias  # type: ignore[assignment]
    input_kernel = state.input_kernel if x.requires_grad else state.first_kernel
    if input_kernel is not None:
        x = geometry.rotate_positions(module, x, input_kernel)
    if input_kernel is None or state.output_kernel is None:
        weight = state.rotation.to_original(
            weight, input_side=input_kernel is None, output_side=state.output_kernel is None
        )
    if state.output_kernel is None:
        return geometry.apply(module, x, weight, bias)
    y = geometry.apply(module, x, weight, None)
    return geometry.rotate_positions(module, y, state.output_kernel, bias)


@cache
def _rotated_class(plain_class: type[nn.Module]) -> type[nn.Module]:
    return type(plain_class.__name__, (_RotatedLayer, plain_class), {"__module__": plain_class.__module__})
