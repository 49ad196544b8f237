"""The quadratic penalty `λ/2 · Σ F (θ' − θ'*)²` as one autograd node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avalanche_rewc.core.geometry import promoted
from avalanche_rewc.core.rotation import Rotation


@dataclass(frozen=True)
class Term:
    """One parameter's share: `Σ importance · (step(parameter) − anchor)²`.

    `step` takes the parameter from the coordinates it lives in into those of importance and anchor; None if they are
    the same ones, which is the cheap and, in rotated space, the usual case.
    """

    parameter: Tensor
    importance: Tensor
    anchor: Tensor
    step: Rotation | None = None


class QuadraticPenalty:
    """`ewc_lambda / 2 · Σ F (θ' − θ'*)²` over all terms; call it for the value, with its gradient behind it.

    Value and gradient `λ F (θ' − θ'*)` come from the same products, with fused operations over all parameters; terms
    with a step of their own add two matrix products each way. All of it in float32 at least: importances of 16 bits
    would overflow or vanish.
    """

    def __init__(self, ewc_lambda: float, terms: Sequence[Term]) -> None:
        self.ewc_lambda = ewc_lambda
        self.direct = [term for term in terms if term.step is None]
        self.stepped = [term for term in terms if term.step is not None]
        self.importances = [term.importance for term in self.direct]
        self.anchors = [promoted(term.anchor) for term in self.direct]
        self.parameters = [term.parameter for term in (*self.direct, *self.stepped)]

    def __call__(self) -> Tensor:
        if not self.parameters:
            return torch.zeros(())
        value: Tensor = _Penalty.apply(self, *self.parameters)
        return value

    def _pulls(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """`½ λ Σ F Δ²` and, for each term, `F Δ` in the parameter's own coordinates."""
        values, pulls = [], []
        parameters = [promoted(parameter) for parameter in parameters]
        if self.direct:
            deltas = torch._foreach_sub(parameters[: len(self.direct)], self.anchors)
            pulls = list(torch._foreach_mul(deltas, self.importances))
            values = [torch.dot(d.reshape(-1), p.reshape(-1)) for d, p in zip(deltas, pulls, strict=True)]
        for term, parameter in zip(self.stepped, parameters[len(self.direct) :], strict=True):
            assert term.step is not None
            delta = term.step.to_rotated(parameter) - term.anchor
            pull = delta * term.importance
            values.append(torch.dot(delta.reshape(-1), pull.reshape(-1)))
            pulls.append(term.step.to_original(pull))
        return torch.stack(values).sum() * (self.ewc_lambda / 2), pulls


class _Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, penalty: QuadraticPenalty, *parameters: Tensor) -> Tensor:
        value, pulls = penalty._pulls(parameters)
        ctx.ewc_lambda = penalty.ewc_lambda
        ctx.save_for_backward(*pulls)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch._foreach_mul(list(ctx.saved_tensors), gradient * ctx.ewc_lambda)
