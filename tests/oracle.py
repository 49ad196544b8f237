"""The slow truth: Fisher information from full Jacobians, one sample at a time, sharing no code with the library."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev


def jacobians(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """d logits / d parameter for one sample: (C, *shape)."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def logits(values: dict[str, Tensor]) -> Tensor:
        return functional_call(model, values, (x.unsqueeze(0),)).squeeze(0)

    return jacrev(logits)(parameters)


def score_rows(model: nn.Module, x: Tensor, kind: str, labels: Tensor | None = None) -> list[dict[str, Tensor]]:
    """For each sample the gradients of log p that its Fisher sums up, already weighted: (S, *shape)."""
    rows = []
    for i, sample in enumerate(x):
        with torch.no_grad():
            p = model(sample.unsqueeze(0)).squeeze(0).softmax(-1)
        classes = len(p)
        if kind == "exact":
            mixing = torch.stack([p[c].sqrt() * (torch.eye(classes).to(p)[c] - p) for c in range(classes)])
        else:
            mixing = (torch.eye(classes).to(p)[labels[i]] - p).unsqueeze(0)
        rows.append({n: torch.einsum("sc,c...->s...", mixing, j) for n, j in jacobians(model, sample).items()})
    return rows


def rotated_by_hand(gradient: Tensor, input_basis: Tensor, output_basis: Tensor) -> Tensor:
    """U2ᵀ W U1 written as plain loops over groups and kernel positions; bases (g, ., .)."""
    groups, m = output_basis.shape[:2]
    result = torch.empty_like(gradient)
    patch = input_basis.shape[1] != gradient.shape[1]
    for group in range(groups):
        block = gradient[group * m : (group + 1) * m]
        if patch or gradient.dim() == 2:
            turned = (output_basis[group].T @ block.flatten(1) @ input_basis[group]).view_as(block)
        else:
            turned = torch.empty_like(block)
            flat, out = block.flatten(2), turned.flatten(2)
            for k in range(flat.shape[2]):
                out[:, :, k] = output_basis[group].T @ flat[:, :, k] @ input_basis[group]
            turned = out.view_as(block)
        result[group * m : (group + 1) * m] = turned
    return result


def diagonal_fisher(rows: list[dict[str, Tensor]], rotations: dict | None = None) -> dict[str, Tensor]:
    """Mean over samples of the sum over signals of squared gradients."""
    totals: dict[str, Tensor] = {}
    for sample in rows:
        for name, gradients in sample.items():
            for gradient in gradients:
                if rotations and name in rotations:
                    gradient = rotated_by_hand(gradient, rotations[name].input_basis, rotations[name].output_basis)
                totals[name] = totals.get(name, 0) + gradient.square() / len(rows)
    return totals


def full_fisher(rows: list[dict[str, Tensor]], name: str, rotation=None) -> Tensor:
    """The whole matrix of one parameter."""
    total = 0
    for sample in rows:
        for gradient in sample[name]:
            if rotation is not None:
                gradient = rotated_by_hand(gradient, rotation.input_basis, rotation.output_basis)
            flat = gradient.flatten()
            total = total + torch.outer(flat, flat) / len(rows)
    return total
