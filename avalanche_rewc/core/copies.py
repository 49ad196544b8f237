"""Parameters that no layer owns, such as a class token or a position embedding: one copy of them for every sample.

What a model only broadcasts over its samples, a parameter of shape (1, ...), may be replaced by a batch of copies
(B, ...). The gradient at a copy is then that of its sample, and comes with the gradients of the layers in the same
backward pass. Whether a model does nothing else with the parameter no shape can tell, so the plan's probe does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call

from avalanche_rewc.core.capture import Call, Record


def may_be_copied(parameter: Tensor) -> bool:
    """Shapes that are broadcast over samples. Others might be, too, but samples would not come first then."""
    return parameter.dim() > 1 and parameter.shape[0] == 1


def forward_with_copies(model: nn.Module, args: tuple[Any, ...], names: Sequence[str], record: Record) -> Any:
    """The model's output, with copies of the named parameters, which are entered into the record under those names."""
    if not names:
        return model(*args)
    samples = next(len(a) for a in args if isinstance(a, Tensor))
    parameters = dict(model.named_parameters())
    copies = {}
    for name in names:
        copy = parameters[name].detach().expand(samples, *parameters[name].shape[1:]).requires_grad_()
        record.calls[name].append(Call((copy.detach(),), edge=get_gradient_edge(copy)))
        copies[name] = copy
    return functional_call(model, copies, args)
