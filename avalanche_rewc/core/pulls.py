"""The gradients `λ F (θ' − θ'*)` of the penalty, in buffers that are filled again in every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from avalanche_rewc.core.geometry import promoted
from avalanche_rewc.core.recycled import Recycler
from avalanche_rewc.core.rotation import Rotation

SMALL = 2**15
"""Parameters of up to so many numbers are handled together: a call from Python costs more than their arithmetic."""


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


class Pulls:
    """`λ Σ F Δ` of every parameter in its own coordinates, `Δ = step(θ) − θ*`, summed over its terms.

    Cost: for a parameter's first term without a step three operations, each of them one reading or writing of two or
    three tensors of the parameter's size; every other term makes a tensor of its own and adds it, and a step takes two
    matrix products each way. Memory: the parameters' size once, and that of the largest of them.
    """

    def __init__(self, ewc_lambda: float, terms: Sequence[Term], parameters: Sequence[Tensor]) -> None:
        self.ewc_lambda = ewc_lambda
        self.recycler = Recycler()
        place = {id(parameter): index for index, parameter in enumerate(parameters)}
        first: dict[int, Term] = {}
        self.others: list[tuple[int, Term]] = []
        for term in terms:
            index = place[id(term.parameter)]
            if term.step is None and index not in first:
                first[index] = term
            else:
                self.others.append((index, term))
        self.count = len(parameters)
        self.blocks = _blocks(first)

    @torch.no_grad()
    def fill(self) -> tuple[Tensor, list[Tensor]]:
        """`λ/2 · Σ F Δ²`, and the pulls: one tensor for each parameter, which are the caller's own."""
        values = []
        pulls: list[Tensor | None] = [None] * self.count
        for block in self.blocks:
            value, found = block.fill(self.ewc_lambda, self.recycler)
            values.append(value)
            for index, pull in zip(block.places, found, strict=True):
                pulls[index] = pull
        for index, term in self.others:
            parameter = promoted(term.parameter)
            delta = (parameter if term.step is None else term.step.to_rotated(parameter)) - term.anchor
            own = delta * term.importance * self.ewc_lambda
            values.append(torch.dot(delta.reshape(-1), own.reshape(-1)))
            own = own if term.step is None else term.step.to_original(own)
            before = pulls[index]
            pulls[index] = own if before is None else before.add_(own)
        return torch.stack(values).sum() / 2, [pull for pull in pulls if pull is not None]


class _Block:
    """One parameter, or several small ones in a row."""

    def __init__(self, terms: Mapping[int, Term], delta: Tensor) -> None:
        self.places = list(terms)
        self.parameters = [term.parameter for term in terms.values()]
        self.delta, self.deltas = delta, [delta]
        if len(terms) > 1:
            self.deltas = self._views(delta)
        self.anchor = _row([promoted(term.anchor) for term in terms.values()])
        self.importance = _row([term.importance for term in terms.values()])
        self.zero = delta.new_zeros(())

    def fill(self, ewc_lambda: float, recycler: Recycler) -> tuple[Tensor, list[Tensor]]:
        """`λ · Σ F Δ²`, and the pulls."""
        if len(self.parameters) == 1:
            torch.sub(self.parameters[0], self.anchor, out=self.delta)
        else:
            torch._foreach_copy_(self.deltas, self.parameters)
            self.delta -= self.anchor
        pull = recycler.empty(self.delta.shape, self.delta)
        torch.addcmul(self.zero, self.delta, self.importance, value=ewc_lambda, out=pull)
        value = torch.dot(self.delta.view(-1), pull.view(-1))
        return value, [pull] if len(self.parameters) == 1 else self._views(pull)

    def _views(self, row: Tensor) -> list[Tensor]:
        parts = row.split([parameter.numel() for parameter in self.parameters])  # type: ignore[no-untyped-call]
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.parameters, strict=True)]


def _blocks(terms: Mapping[int, Term]) -> list[_Block]:
    """Large parameters alone, small ones together with those of their kind. All write `Δ` into the same memory."""
    groups: dict[tuple[object, ...], dict[int, Term]] = defaultdict(dict)
    for index, term in terms.items():
        kind = term.importance.device, term.importance.dtype
        groups[kind if term.parameter.numel() <= SMALL else (*kind, index)][index] = term
    sizes = [sum(term.parameter.numel() for term in group.values()) for group in groups.values()]
    scratches: dict[tuple[object, object], Tensor] = {}
    blocks = []
    for (device, dtype, *_), group, size in zip(groups, groups.values(), sizes, strict=True):
        if (device, dtype) not in scratches:
            scratches[device, dtype] = next(iter(group.values())).importance.new_empty(max(sizes))
        delta = scratches[device, dtype][:size]
        if len(group) == 1:
            delta = delta.view(next(iter(group.values())).parameter.shape)
        blocks.append(_Block(group, delta))
    return blocks


def _row(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor as it is, several in a row."""
    return tensors[0].contiguous() if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
