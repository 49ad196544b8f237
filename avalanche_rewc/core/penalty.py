"""The quadratic penalty `λ/2 · Σ F (θ' − θ'*)²` as one autograd node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from avalanche_rewc.core.pulls import Pulls, Term


class QuadraticPenalty:
    """`ewc_lambda / 2 · Σ F (θ' − θ'*)²` over all terms; call it for the value, with its gradient behind it.

    Value and gradient `λ F (θ' − θ'*)` come from the same products, see `Pulls`. All of it in float32 at least:
    importances of 16 bits would overflow or vanish.
    """

    def __init__(self, ewc_lambda: float, terms: Sequence[Term]) -> None:
        self.ewc_lambda = ewc_lambda
        self.parameters = list({id(term.parameter): term.parameter for term in terms}.values())
        self._pulls = Pulls(ewc_lambda, terms, self.parameters)

    def __call__(self) -> Tensor:
        if not self.parameters:
            return torch.zeros(())
        value: Tensor = _Penalty.apply(self._pulls, *self.parameters)
        return value


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pulls: Pulls, *parameters: Tensor) -> Tensor:
        value, ctx.found = pulls.fill()
        ctx.pulls, ctx.parameters = pulls, parameters
        ctx.versions = [parameter._version for parameter in parameters]
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found, ctx.found = ctx.found, None
        if found is None:  # they were given away to the first backward pass
            if ctx.versions != [parameter._version for parameter in ctx.parameters]:
                raise RuntimeError("the parameters have changed since this penalty was computed: compute it again")
            found = ctx.pulls.fill()[1]
        # Not looked at on other devices, where to look is to wait. loss.backward() begins with a 1.
        if gradient.device.type != "cpu" or float(gradient) != 1:
            torch._foreach_mul_(found, gradient)
        # Nobody else holds these tensors, so autograd adds the gradients of the loss to them in place.
        return None, *found
