"""What one experience leaves behind, and how it follows a model that grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from avalanche_rewc.core.geometry import promoted_type
from avalanche_rewc.core.plan import Entry
from avalanche_rewc.core.rotation import Rotation


@dataclass
class Memory:
    """What one experience leaves behind, by parameter name.

    Attributes:
        rotations: of the rotated weights.
        importances: diagonal Fisher, mean over samples, in rotated coordinates, shaped like the parameter; in float32
            at least.
        anchors: the parameters θ* themselves, in rotated coordinates.
        positions: rows per sample and call at a rotated layer's input and output; they decide the cost of a step.
        factors: input and output factor of the rotated layers, mean over samples; of online EWC a decaying sum, the
            output factors of each experience divided by their trace over all layers if importances are normalised.
        entries: what was done to each parameter.
        scale: of the importances in the penalty, `1 / Σ F` if they are normalised, else 1.
    """

    rotations: dict[str, Rotation] = field(default_factory=dict)
    importances: dict[str, Tensor] = field(default_factory=dict)
    anchors: dict[str, Tensor] = field(default_factory=dict)
    positions: dict[str, tuple[float, float]] = field(default_factory=dict)
    factors: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    scale: float = 1.0

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain containers, which `torch.load(weights_only=True)` accepts. Tensors are not copied."""
        return {
            "rotations": {name: [r.input_basis, r.output_basis, r.rank] for name, r in self.rotations.items()},
            "importances": dict(self.importances),
            "anchors": dict(self.anchors),
            "positions": {name: list(pair) for name, pair in self.positions.items()},
            "factors": {name: list(pair) for name, pair in self.factors.items()},
            "entries": [list(astuple(entry)) for entry in self.entries],
            "scale": self.scale,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Memory:
        """The inverse of `state_dict`."""
        return cls(
            rotations={name: Rotation(*parts) for name, parts in state["rotations"].items()},
            importances=dict(state["importances"]),
            anchors=dict(state["anchors"]),
            positions={name: (pair[0], pair[1]) for name, pair in state["positions"].items()},
            factors={name: (pair[0], pair[1]) for name, pair in state["factors"].items()},
            entries=[
                Entry(parameter, layer, tuple(shape), treatment, note)
                for parameter, layer, shape, treatment, note in state["entries"]
            ],
            scale=state["scale"],
        )


def grow(memory: Memory, parameters: Mapping[str, Tensor]) -> Memory:
    """The memory for parameters that have gained rows or columns since: new ones get zero importance and keep their
    own axis, old ones keep their rotation. Parameters that are gone are left out. It follows parameters that have moved
    to another device or precision, too.

    Raises:
        RuntimeError: a parameter has shrunk or changed its dimensions.
    """
    importances, anchors, rotations = {}, {}, {}
    for name, importance in memory.importances.items():
        if name not in parameters:
            continue
        shape = parameters[name].shape
        if len(shape) != importance.dim() or any(new < old for new, old in zip(shape, importance.shape, strict=True)):
            raise RuntimeError(
                f"parameter {name} had shape {tuple(importance.shape)} when its importance was estimated and has "
                f"{tuple(shape)} now; parameters may grow between experiences, not shrink or change their dimensions"
            )
        like = parameters[name]
        importances[name] = grown(importance, shape).to(like.device, promoted_type(like.dtype))
        anchors[name] = grown(memory.anchors[name], shape).to(like)
        if name in memory.rotations:
            rotation = memory.rotations[name].to(like)
            rotations[name] = _grown_rotation(name, rotation, importance.shape, shape)
    return replace(memory, importances=importances, anchors=anchors, rotations=rotations)


def _grown_rotation(name: str, rotation: Rotation, old: torch.Size, new: torch.Size) -> Rotation:
    if old == new:
        return rotation
    if rotation.output_basis.shape[0] > 1 or old[2:] != new[2:]:
        raise RuntimeError(
            f"parameter {name} grew from {tuple(old)} to {tuple(new)}: a rotated layer may gain outputs or inputs, but "
            "not change its groups or its kernel. Leave it out of `layers`"
        )
    per_input = rotation.input_basis.shape[1] // old[1]  # kernel positions in a patch basis, 1 otherwise
    return rotation.extended(outputs=new[0], inputs=new[1] * per_input)


def grown(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Padded with zeros behind, to `shape`."""
    if tensor.shape == shape:
        return tensor
    result = tensor.new_zeros(shape)
    result[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return result
