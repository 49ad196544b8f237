"""The change of coordinates: `W' = U2ᵀ W U1` and back, for Linear, convolutions and groups alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from avalanche_rewc.core import geometry
from avalanche_rewc.core.reflections import Reflections, find_reflections, leading_basis

Matrix = Tensor | Reflections

SMALL = 2**16
"""Numbers in `U2 ⊗ U1`, up to which a layer is turned by that one matrix: calls cost more than their arithmetic. They
are so many for 256 pairs of an input and an output, or for 16 in each of 256 groups."""


@dataclass(frozen=True)
class Rotation:
    """A pair of orthogonal bases for the two sides of a weight.

    Attributes:
        input_basis: `U1`, eigenvectors in the columns, shape (g, q, q). q is the number of inputs per group
            (Linear, and "channel" convolutions), or inputs · kernel positions ("patch" convolutions).
        output_basis: `U2`, shape (g, m, m), m outputs per group.
        rank: how many columns of each basis were asked for; the others are near the original axes. None: all.

    The weight (g·m, n, *kernel) is seen as (g, m, q, r): r kernel positions share one channel basis, r = 1 otherwise.
    The rotated weight keeps the weight's shape, so importances, anchors and optimizer state do too. Bases are float32
    or float64, whatever the weight is: 16 bits are too few for an orthogonal matrix.
    """

    input_basis: Tensor
    output_basis: Tensor
    rank: int | None = None

    def leading(self, rank: int | None) -> Rotation:
        """Only the first `rank` columns of each basis, which are then cheap to apply. See `leading_basis`."""
        return Rotation(leading_basis(self.input_basis, rank), leading_basis(self.output_basis, rank), rank)

    @cached_property
    def input_matrix(self) -> Matrix:
        """`U1` in its cheapest form."""
        return find_reflections(self.input_basis, self.rank) or self.input_basis

    @cached_property
    def output_matrix(self) -> Matrix:
        """`U2` in its cheapest form."""
        return find_reflections(self.output_basis, self.rank) or self.output_basis

    @cached_property
    def _at_once(self) -> Tensor | None:
        """`U2 ⊗ U1`, (g, m·q, m·q) or of one group (m·q, m·q), for a small layer; None for others."""
        groups, outputs, inputs = *self.output_basis.shape[:2], self.input_basis.shape[1]
        if groups * (outputs * inputs) ** 2 > SMALL:
            return None
        pairs = torch.einsum("gab,gij->gaibj", self.output_basis, self.input_basis)
        return pairs.reshape(groups, outputs * inputs, outputs * inputs).squeeze(0)

    def tensors(self) -> list[Tensor]:
        """All that it holds: the bases, and the forms that they are applied in."""
        forms = [form for form in (self.input_matrix, self.output_matrix) if isinstance(form, Reflections)]
        held = [self.input_basis, self.output_basis, *(part for form in forms for part in form)]
        return held if self._at_once is None else [*held, self._at_once]

    def is_cheap(self) -> bool:
        """Whether products take less than half of what they do with any other bases of this size."""
        bases, forms = (self.input_basis, self.output_basis), (self.input_matrix, self.output_matrix)
        rows = [cost_of_a_row(form) / basis.shape[-1] for form, basis in zip(forms, bases, strict=True)]
        return 2 * sum(rows) < sum(basis.shape[-1] for basis in bases)

    def to_rotated(self, weight: Tensor, batch_dims: int = 0) -> Tensor:
        """`W' = U2ᵀ W U1`, also for a batch of weights or gradients.

        Cost: m·q·r·(m+q) multiplications per group, m·q·r·4·rank with a rank, (m·q)²·r for a small layer.
        """
        if batch_dims == 0 and self._at_once is not None:
            return _applied(self._at_once.mT, weight)
        return self._product(self.output_matrix.mT, weight, self.input_matrix, batch_dims)

    def to_original(self, rotated_weight: Tensor, *, input_side: bool = True, output_side: bool = True) -> Tensor:
        """`W = U2 W' U1ᵀ`, the inverse of `to_rotated` since both bases are orthogonal; or one side of it only."""
        if input_side and output_side and self._at_once is not None:
            return _applied(self._at_once, rotated_weight)
        left = self.output_matrix if output_side else None
        right = self.input_matrix.mT if input_side else None
        return self._product(left, rotated_weight, right, 0)

    def _product(self, left: Matrix | None, weight: Tensor, right: Matrix | None, batch_dims: int) -> Tensor:
        """`left @ W @ right` for each group and kernel position; left (g, m, m), right (g, q, q), None for identity."""
        shape, dtype = weight.shape, weight.dtype
        groups, outputs, inputs = *self.output_basis.shape[:2], self.input_basis.shape[1]
        stack = geometry.promoted(weight).reshape(*shape[:batch_dims], groups, outputs, inputs, -1)
        # Weights must not lose precision to a surrounding autocast.
        with torch.autocast(weight.device.type, enabled=False):
            if left is not None:
                columns = stack.flatten(-2)
                columns = left @ columns if isinstance(left, Tensor) else left.times(columns)
                stack = columns.view_as(stack)
            if right is not None:
                # Kernel positions as rows: one large product, not one of a few columns for each output. And back: a
                # kernel in any other order of memory would make a convolution copy its activations into that order.
                rows = apply_to_rows(stack.transpose(-1, -2).flatten(-3, -2), right)
                stack = rows.view(*stack.shape[:-2], -1, inputs).transpose(-1, -2)
            return stack.reshape(shape).contiguous().to(dtype)

    def mixes_positions(self, weight: Tensor) -> bool:
        """Whether the input basis is a patch basis, of channels and kernel positions together."""
        return self.input_basis.shape[-1] != weight.shape[1]

    def extended(self, outputs: int, inputs: int) -> Rotation:
        """The same rotation for a layer that has grown: identity for the rows and columns that are new."""
        return replace(
            self, input_basis=_extend(self.input_basis, inputs), output_basis=_extend(self.output_basis, outputs)
        )

    def to(self, like: Tensor) -> Rotation:
        """On the device of a weight and in its precision, at least float32."""
        device, dtype = like.device, geometry.promoted_type(like.dtype)
        input_basis, output_basis = self.input_basis.to(device, dtype), self.output_basis.to(device, dtype)
        if input_basis is self.input_basis and output_basis is self.output_basis:
            return self  # with the forms that were found
        return replace(self, input_basis=input_basis, output_basis=output_basis)


def _applied(matrix: Tensor, weight: Tensor) -> Tensor:
    """The matrix (..., m·q, m·q) times the weight (g·m, n, *kernel) as (..., m·q, r)."""
    columns = geometry.promoted(weight).reshape(*matrix.shape[:-1], -1)
    with torch.autocast(weight.device.type, enabled=False):
        return (matrix @ columns).view(weight.shape).to(weight.dtype)


def apply_to_rows(rows: Tensor, matrix: Matrix) -> Tensor:
    """`rows @ matrix` for rows (..., g, r, d)."""
    return rows @ matrix if isinstance(matrix, Tensor) else matrix.after(rows)


def cost_of_a_row(matrix: Matrix) -> int:
    """Multiplications for the product of one row with it: d², or 2·d·k for k reflections."""
    parts = (matrix,) if isinstance(matrix, Tensor) else matrix
    return sum(part.shape[-2] * part.shape[-1] for part in parts)


def between(source: Rotation | None, target: Rotation | None) -> Rotation | None:
    """The rotation that takes weights from the coordinates of `source` into those of `target` (None: the original).

    `U2ᵀ (V2 W' V1ᵀ) U1 = (V2ᵀ U2)ᵀ W' (V1ᵀ U1)`: one pair of bases does both steps.
    """
    if source is None:
        return target
    if target is None:
        return Rotation(source.input_basis.mT, source.output_basis.mT)
    return Rotation(source.input_basis.mT @ target.input_basis, source.output_basis.mT @ target.output_basis)


def way_between(source: Rotation | None, target: Rotation | None) -> tuple[Rotation | None, Rotation | None]:
    """The same as a way back from the first rotation, and then into the second; None where there is nothing to do.

    `between` makes one full pair of bases of two, and the cheap form of reflections is lost: with those it is better
    to go by the original coordinates, a way that all targets share.
    """
    if source is target:
        return None, None
    if source is not None and target is not None and not target.is_cheap():
        return None, between(source, target)
    return source, target


def spread(importance: Tensor, source: Rotation | None, target: Rotation | None) -> Tensor:
    """The diagonal, in `target`'s coordinates, of the quadratic form that is `diag(importance)` in `source`'s.

    With R the rotation from source to target, `F'[i, j] = Σ_ab R2[a, i]² R1[b, j]² F[a, b]`. It keeps the trace.
    """
    step = between(source, target)
    if step is None:
        return importance
    return Rotation(step.input_basis.square(), step.output_basis.square()).to_rotated(importance)


def _extend(basis: Tensor, size: int) -> Tensor:
    old = basis.shape[1]
    if size == old:
        return basis
    if size < old or basis.shape[0] != 1:
        raise ValueError(f"a basis of size {old} in {basis.shape[0]} group(s) cannot be extended to {size}")
    extended = torch.eye(size, dtype=basis.dtype, device=basis.device).unsqueeze(0)
    extended[:, :old, :old] = basis
    return extended
