"""The change of coordinates: `W' = U2ᵀ W U1` and back, for Linear, convolutions and groups alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_rewc.core import geometry


@dataclass(frozen=True)
class Rotation:
    """A pair of orthogonal bases for the two sides of a weight.

    Attributes:
        input_basis: `U1`, eigenvectors in the columns, shape (g, q, q). q is the number of inputs per group
            (Linear, and "channel" convolutions), or inputs · kernel positions ("patch" convolutions).
        output_basis: `U2`, shape (g, m, m), m outputs per group.

    The weight (g·m, n, *kernel) is seen as (g, m, q, r): r kernel positions share one channel basis, r = 1 otherwise.
    The rotated weight keeps the weight's shape, so importances, anchors and optimizer state do too. Bases are float32
    or float64, whatever the weight is: 16 bits are too few for an orthogonal matrix.
    """

    input_basis: Tensor
    output_basis: Tensor

    def to_rotated(self, weight: Tensor, batch_dims: int = 0) -> Tensor:
        """`W' = U2ᵀ W U1`, also for a batch of weights or gradients. Cost: m·q·r·(m+q) multiplications per group."""
        return self._product(self.output_basis.mT, weight, self.input_basis, batch_dims)

    def to_original(self, rotated_weight: Tensor, *, input_side: bool = True, output_side: bool = True) -> Tensor:
        """`W = U2 W' U1ᵀ`, the inverse of `to_rotated` since both bases are orthogonal; or one side of it only."""
        left = self.output_basis if output_side else None
        right = self.input_basis.mT if input_side else None
        return self._product(left, rotated_weight, right, 0)

    def _product(self, left: Tensor | None, weight: Tensor, right: Tensor | None, batch_dims: int) -> Tensor:
        """`left @ W @ right` for each group and kernel position; left (g, m, m), right (g, q, q), None for identity."""
        shape, dtype = weight.shape, weight.dtype
        groups, outputs, inputs = *self.output_basis.shape[:2], self.input_basis.shape[1]
        stack = geometry.promoted(weight).reshape(*shape[:batch_dims], groups, outputs, inputs, -1)
        # Weights must not lose precision to a surrounding autocast.
        with torch.autocast(weight.device.type, enabled=False):
            if left is not None:
                stack = (left @ stack.flatten(-2)).view_as(stack)
            if right is not None:
                # Kernel positions as rows: one large product, not one of a few columns for each output. And back: a
                # kernel in any other order of memory would make a convolution copy its activations into that order.
                rows = stack.transpose(-1, -2).flatten(-3, -2) @ right
                stack = rows.view(*stack.shape[:-2], -1, inputs).transpose(-1, -2)
            return stack.reshape(shape).contiguous().to(dtype)

    def mixes_positions(self, weight: Tensor) -> bool:
        """Whether the input basis is a patch basis, of channels and kernel positions together."""
        return self.input_basis.shape[-1] != weight.shape[1]

    def extended(self, outputs: int, inputs: int) -> Rotation:
        """The same rotation for a layer that has grown: identity for the rows and columns that are new."""
        return Rotation(_extend(self.input_basis, inputs), _extend(self.output_basis, outputs))

    def to(self, like: Tensor) -> Rotation:
        """On the device of a weight and in its precision, at least float32."""
        device, dtype = like.device, geometry.promoted_type(like.dtype)
        return Rotation(self.input_basis.to(device, dtype), self.output_basis.to(device, dtype))


def between(source: Rotation | None, target: Rotation | None) -> Rotation | None:
    """The rotation that takes weights from the coordinates of `source` into those of `target` (None: the original).

    `U2ᵀ (V2 W' V1ᵀ) U1 = (V2ᵀ U2)ᵀ W' (V1ᵀ U1)`: one pair of bases does both steps.
    """
    if source is None:
        return target
    if target is None:
        return Rotation(source.input_basis.mT, source.output_basis.mT)
    return Rotation(source.input_basis.mT @ target.input_basis, source.output_basis.mT @ target.output_basis)


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
