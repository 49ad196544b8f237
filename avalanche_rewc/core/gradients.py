"""Per-sample gradients: in closed form from captured rows where possible, by `torch.func` for everything else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from avalanche_rewc.core import geometry
from avalanche_rewc.core.capture import Call

Norm = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

CHUNK_BYTES = 256 * 2**20
"""Per-sample gradients are made in chunks of samples of about this size."""


def has_closed_form(module: nn.Module) -> bool:
    """Whether per-sample gradients of this module's own parameters follow from its input and output gradient."""
    return geometry.is_rotatable(module) or isinstance(module, Norm)


def closed_form(
    module: nn.Module, calls: Sequence[Call], output_gradients: Sequence[Tensor | None]
) -> dict[str, Tensor]:
    """Per-sample gradients (B, *shape) of a module's `weight` and `bias`, summed over its calls and positions.

    Linear, ConvNd:  dW_b = Σ_positions g_b x_bᵀ      db_b = Σ_positions g_b
    norms:           dw_b = Σ_positions g_b ⊙ x̂_b     db_b = Σ_positions g_b     (x̂: the normalised input)
    """
    gradients: dict[str, Tensor] = {}
    for call, output_gradient in zip(calls, output_gradients, strict=True):
        if output_gradient is None:
            continue
        x, g = geometry.promoted(call.input), geometry.promoted(output_gradient)
        for name, value in (_affine if isinstance(module, Norm) else _linear)(module, x, g).items():
            gradients[name] = gradients[name] + value if name in gradients else value
    return gradients


def _linear(module: nn.Module, x: Tensor, g: Tensor) -> dict[str, Tensor]:
    rows, weight = geometry.output_rows(module, g), module._parameters["weight"]
    assert weight is not None
    products = torch.einsum("bpgm,bpgq->bgmq", rows, geometry.patch_rows(module, x))
    return {"weight": products.reshape(-1, *weight.shape), "bias": rows.sum(1).flatten(1)}


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
    model: nn.Module, names: Sequence[str], args: tuple[Any, ...], signal: Tensor
) -> Iterator[tuple[slice, dict[str, Tensor]]]:
    """Per-sample gradients of `Σ signal · logits` for any parameters, in chunks of samples.

    Tensors among `args` have the samples in their first dimension; anything else is passed on as it is. Yields the
    slice of samples and their gradients (b, *shape). `vmap` over samples; where an operation does not allow that, one
    sample after the other, with a warning that says which parameters and why.
    """
    parameters = dict(model.named_parameters())
    chosen = {name: parameters[name].detach() for name in names}
    samples = signal.shape[0]
    bytes_each = sum(p.numel() * p.element_size() for p in chosen.values())
    size = max(1, min(samples, CHUNK_BYTES // max(1, 2 * bytes_each)))

    def objective(values: dict[str, Tensor], sample_args: tuple[Any, ...], sample_signal: Tensor) -> Tensor:
        batch_of_one = tuple(a.unsqueeze(0) if isinstance(a, Tensor) else a for a in sample_args)
        logits: Tensor = functional_call(model, values, batch_of_one).squeeze(0)
        return (logits * sample_signal).sum()

    dims = (0, tuple(0 if isinstance(a, Tensor) else None for a in args), 0)
    for start in range(0, samples, size):
        part = slice(start, min(start + size, samples))
        length = part.stop - part.start
        # Expanded parameters, not shared ones: recurrent layers write in place into what they make from them.
        expanded = {name: value.expand(length, *value.shape) for name, value in chosen.items()}
        part_args = tuple(a[part] if isinstance(a, Tensor) else a for a in args)
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the fused attention has no batching rule
                per_sample = vmap(grad(objective), in_dims=dims, randomness="different")
                gradients = per_sample(expanded, part_args, signal[part])
        except Exception as error:
            warnings.warn(
                f"per-sample gradients of {', '.join(names)} are taken one sample at a time, which is slow: "
                f"torch.func.vmap says {str(error).splitlines()[0]!r}",
                RuntimeWarning,
                stacklevel=2,
            )
            gradients = _one_by_one(model, {name: parameters[name] for name in names}, part_args, signal[part])
        yield part, {name: geometry.promoted(value.detach()) for name, value in gradients.items()}


def _one_by_one(
    model: nn.Module, parameters: Mapping[str, Tensor], args: tuple[Any, ...], signal: Tensor
) -> dict[str, Tensor]:
    collected: dict[str, list[Tensor]] = {name: [] for name in parameters}
    for i in range(signal.shape[0]):
        logits = model(*(a[i : i + 1] if isinstance(a, Tensor) else a for a in args))
        found = torch.autograd.grad(logits, list(parameters.values()), signal[i : i + 1], allow_unused=True)
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True):
            collected[name].append(torch.zeros_like(parameter) if gradient is None else gradient)
    return {name: torch.stack(gradients) for name, gradients in collected.items()}
