"""Per-sample gradients: in closed form from captured rows where possible, by `torch.func` for everything else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from avalanche_rewc.core import attention, geometry
from avalanche_rewc.core.capture import Call

Norm = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

CHUNK_BYTES = 256 * 2**20
"""Per-sample gradients are made in chunks of samples of about this size."""


def has_closed_form(module: nn.Module) -> bool:
    """Whether per-sample gradients of this module's own parameters may follow from its input and output gradient."""
    return geometry.is_rotatable(module) or isinstance(module, Norm) or attention.is_plain(module)


def closed_form(
    module: nn.Module, calls: Sequence[Call], output_gradients: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """Per-sample gradients (B, *shape) of a module's parameters, summed over its calls and positions.

    Linear, ConvNd:  dW_b = Σ_positions g_b x_bᵀ      db_b = Σ_positions g_b
    norms:           dw_b = Σ_positions g_b ⊙ x̂_b     db_b = Σ_positions g_b     (x̂: the normalised input)
    attention:       as Linear, for each of its projections
    """
    gradients: dict[str, Tensor] = {}
    used = [(call, g) for call, g in zip(calls, output_gradients, strict=True) if g is not None]
    if isinstance(module, nn.MultiheadAttention):
        return _projected(module, used) if used else {}
    for call, output_gradient in used:
        x, g = geometry.promoted(call.input), geometry.promoted(output_gradient)
        for name, value in (_affine if isinstance(module, Norm) else _linear)(module, x, g).items():
            gradients[name] = gradients[name] + value if name in gradients else value
    return gradients


def _linear(module: nn.Module, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    rows, weight = geometry.output_rows(module, g), geometry.weight_of(module)
    products = torch.einsum("bpgm,bpgq->bgmq", rows, geometry.patch_rows(module, x))
    return {"weight": products.reshape(-1, *weight.shape), "bias": rows.sum(1).flatten(1)}


def _projected(module: nn.MultiheadAttention, used: Sequence[tuple[Call, Tensor]]) -> dict[str, Tensor]:
    rows = attention.projections(module, [(call, g.unsqueeze(0)) for call, g in used])
    found = {name: (torch.einsum("bpm,bpn->bmn", g[0], x), g[0].sum(1)) for name, (x, g) in rows.items()}
    return attention.by_attribute(module, found)


def _affine(module: nn.Module, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        shape = list(module.normalized_shape)
        if isinstance(module, nn.LayerNorm):
            normal = F.layer_norm(x, shape, eps=module.eps)
        else:
            normal = F.rms_norm(x, shape, eps=module.eps)
        inner = tuple(range(1, x.dim() - len(shape)))
    else:
        if isinstance(module, nn.GroupNorm):
            normal = F.group_norm(x, module.num_groups, eps=module.eps)
        else:
            assert isinstance(module, nn.modules.batchnorm._BatchNorm)
            normal = F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
        inner = tuple(range(2, x.dim()))
    summed = {"weight": g * normal, "bias": g}
    return {name: value.sum(inner) if inner else value for name, value in summed.items()}


def by_autograd(
    model: nn.Module, names: Sequence[str], args: tuple[Any, ...], signals: Tensor
) -> Iterator[dict[str, Tensor]]:
    """Per-sample gradients of `Σ signal · logits` for any parameters, in chunks of samples and signals.

    Args:
        args: of the model's forward; tensors have the samples in their first dimension, anything else is passed on.
        signals: (S, B, C).

    Yields gradients (b, s, *shape). `vmap` over samples, and over the signals of a sample after one forward pass;
    where an operation does not allow that, one after the other, with a warning that says which parameters and why.
    """
    parameters = dict(model.named_parameters())
    chosen = {name: parameters[name].detach() for name in names}
    bytes_each = 2 * sum(p.numel() * p.element_size() for p in chosen.values())
    at_once = max(1, CHUNK_BYTES // max(1, bytes_each))
    for few in signals.split(at_once):  # type: ignore[no-untyped-call]
        size = max(1, at_once // len(few))
        for start in range(0, few.shape[1], size):
            part = slice(start, start + size)
            part_args = tuple(a[part] if isinstance(a, Tensor) else a for a in args)
            part_signals = few[:, part].transpose(0, 1)
            try:
                gradients = _vectorised(model, chosen, part_args, part_signals)
            except Exception as error:
                warnings.warn(
                    f"per-sample gradients of {', '.join(names)} are taken one sample at a time, which is slow: "
                    f"torch.func.vmap says {str(error).splitlines()[0]!r}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                gradients = _one_by_one(model, {name: parameters[name] for name in names}, part_args, part_signals)
            yield {name: geometry.promoted(value.detach()) for name, value in gradients.items()}


def _vectorised(
    model: nn.Module, values: Mapping[str, Tensor], args: tuple[Any, ...], signals: Tensor
) -> dict[str, Tensor]:
    def of_one_sample(own: dict[str, Tensor], sample: tuple[Any, ...], sample_signals: Tensor) -> dict[str, Tensor]:
        batch_of_one = tuple(a.unsqueeze(0) if isinstance(a, Tensor) else a for a in sample)
        pull = vjp(lambda v: functional_call(model, v, batch_of_one).squeeze(0), own)[1]
        gradients: dict[str, Tensor] = vmap(pull)(sample_signals)[0]
        return gradients

    # Expanded parameters, not shared ones: recurrent layers write in place into what they make from them.
    expanded = {name: value.expand(len(signals), *value.shape) for name, value in values.items()}
    dims = (0, tuple(0 if isinstance(a, Tensor) else None for a in args), 0)
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention has no batching rule
        result: dict[str, Tensor] = vmap(of_one_sample, in_dims=dims, randomness="different")(expanded, args, signals)
    return result


def _one_by_one(
    model: nn.Module, parameters: Mapping[str, Tensor], args: tuple[Any, ...], signals: Tensor
) -> dict[str, Tensor]:
    collected: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for i, sample_signals in enumerate(signals):
        logits = model(*(a[i : i + 1] if isinstance(a, Tensor) else a for a in args))
        for signal in sample_signals:
            found = torch.autograd.grad(
                logits, list(parameters.values()), signal.unsqueeze(0), retain_graph=True, allow_unused=True
            )
            for (name, parameter), gradient in zip(parameters.items(), found, strict=True):
                collected[name].append(torch.zeros_like(parameter) if gradient is None else gradient.to_dense())
    shape = signals.shape[:2]
    return {name: torch.stack(found).reshape(*shape, *parameters[name].shape) for name, found in collected.items()}
