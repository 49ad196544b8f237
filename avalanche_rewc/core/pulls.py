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
    """One parameter's share: `Σ importance · (step(home⁻¹(parameter)) − anchor)²`.

    Attributes:
        step: into the coordinates of importance and anchor; None if the parameter is there already, which is the cheap
            and, in rotated space, the usual case.
        home: the coordinates the parameter lives in, if `step` begins in the original ones.
    """

    parameter: Tensor
    importance: Tensor
    anchor: Tensor
    step: Rotation | None = None
    home: Rotation | None = None


class Pulls:
    """`λ Σ F Δ` of every parameter in its own coordinates, `Δ = step(home⁻¹(θ)) − θ*`, summed over its terms.

    Cost: for a parameter's first term without a step three operations, each of them one reading or writing of two or
    three tensors of the parameter's size; every other term makes a tensor of its own and adds it, and a step takes a
    matrix product or two each way. Terms with the same home share the way from there and back. Memory: the parameters'
    size once, and that of the largest of them.
    """

    def __init__(self, ewc_lambda: float, terms: Sequence[Term], parameters: Sequence[Tensor]) -> None:
        self.ewc_lambda = ewc_lambda
        self.recycler = Recycler()
        place = {id(parameter): index for index, parameter in enumerate(parameters)}
        first: dict[int, Term] = {}
        others: dict[tuple[int, int], list[Term]] = defaultdict(list)
        for term in terms:
            index = place[id(term.parameter)]
            if term.step is None and term.home is None and index not in first:
                first[index] = term
            else:
                others[index, id(term.home)].append(term)
        self.others = [(index, found) for (index, _), found in others.items()]
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
        for index, terms in self.others:
            value, pull = self._of_one_home(terms)
            values.append(value)
            before = pulls[index]
            pulls[index] = pull if before is None else before.add_(pull)
        return torch.stack(values).sum() / 2, [pull for pull in pulls if pull is not None]

    def _of_one_home(self, terms: Sequence[Term]) -> tuple[Tensor, Tensor]:
        """`λ · Σ F Δ²` and the pull of terms of one parameter."""
        home, parameter = terms[0].home, promoted(terms[0].parameter)
        plain = parameter if home is None else home.to_original(parameter)
        value, pull = plain.new_zeros(()), torch.zeros_like(plain)
        for term in terms:
            delta = (plain if term.step is None else term.step.to_rotated(plain)) - term.anchor
            own = delta * term.importance * self.ewc_lambda
            value += torch.dot(delta.reshape(-1), own.reshape(-1))
            pull += own if term.step is None else term.step.to_original(own)
        return value, pull if home is None else home.to_rotated(pull)


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
