"""The paper's own form of a rotated layer: two more layers with fixed weights around it, `y = U2 · (W' · (U1ᵀ x)) + b`.

Only here, as the reference that the library's form is timed against.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from avalanche_rewc.core import Memory
from avalanche_rewc.core.penalty import QuadraticPenalty
from avalanche_rewc.core.pulls import Term


class TwoFixedLayers(nn.Module):
    """A Linear or Conv2d with its rotated weight between two 1×1 layers of the same kind that are not trained."""

    def __init__(
        self, layer: nn.Linear | nn.Conv2d, input_basis: Tensor, output_basis: Tensor, rotated: Tensor
    ) -> None:
        super().__init__()
        self.before = _fixed(layer, input_basis.mT)
        self.rotated = copy.deepcopy(layer)
        self.rotated.weight = nn.Parameter(rotated)
        self.rotated.bias = None
        self.after = _fixed(layer, output_basis)
        self.after.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """What the layer computed before it was rotated."""
        y: Tensor = self.after(self.rotated(self.before(x)))
        return y


def _fixed(layer: nn.Linear | nn.Conv2d, matrix: Tensor) -> nn.Linear | nn.Conv2d:
    size = matrix.shape[0]
    if isinstance(layer, nn.Linear):
        fixed: nn.Linear | nn.Conv2d = nn.Linear(size, size, bias=False)
        fixed.weight = nn.Parameter(matrix.contiguous(), requires_grad=False)
    else:
        fixed = nn.Conv2d(size, size, 1, bias=False)
        fixed.weight = nn.Parameter(matrix.reshape(size, size, 1, 1).contiguous(), requires_grad=False)
    return fixed


def in_paper_form(model: nn.Module, memory: Memory, ewc_lambda: float) -> tuple[nn.Module, QuadraticPenalty]:
    """A copy of the model with every rotated layer replaced, and the same penalty on its parameters."""
    rotated = {
        name: (rotation.input_basis[0], rotation.output_basis[0], memory.anchors[name].clone())
        for name, rotation in memory.rotations.items()
    }
    model, parameters = between_fixed_layers(model, rotated)
    terms = [Term(parameters[name], memory.importances[name], memory.anchors[name]) for name in memory.importances]
    return model, QuadraticPenalty(ewc_lambda * memory.scale, terms)


def between_fixed_layers(
    model: nn.Module, rotated: Mapping[str, tuple[Tensor, Tensor, Tensor]]
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of the model in the paper's form, and its parameters by the names that they had before.

    Args:
        rotated: by a weight's name, its input and output basis and the weight in them.
    """
    model = copy.deepcopy(model)
    places: dict[str, Tensor] = {}
    for name, (input_basis, output_basis, weight) in rotated.items():
        module_name = name.removesuffix(".weight")
        layer = model.get_submodule(module_name)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        form = TwoFixedLayers(layer, input_basis, output_basis, weight)
        _replace(model, module_name, form)
        places[name] = form.rotated.weight
        if form.after.bias is not None:
            places[f"{module_name}.bias"] = form.after.bias
    return model, {**dict(model.named_parameters()), **places}


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
