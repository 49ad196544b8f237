"""Multi-head attention: what its four projections see, and what comes back to each.

`nn.MultiheadAttention` reads the weights of its projections itself and calls no Linear, so that hooks on layers see
nothing of them. Its own inputs and the gradient at its output are enough. With the projections `q`, `k` and `v` in
heads of d dimensions,

    A = softmax(q kᵀ / √d + mask)        o = A v        y = W_out o + b_out

is computed once more, and the gradient g at y goes back through it as

    do = W_outᵀ g        dA = do vᵀ        dZ = A ⊙ (dA − Σ_keys A ⊙ dA) / √d
    dq = dZ k            dk = dZᵀ q        dv = Aᵀ do

From there every projection is a Linear on tokens, with per-sample gradients `Σ_positions g xᵀ`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_rewc.core.capture import Call
from avalanche_rewc.core.geometry import of_all_calls, promoted

Rows = tuple[Tensor, Tensor]
"""Inputs (B, P, n) of a projection and gradients (S, B, P, m) at its output: S signals, B samples, P positions."""
INPUTS = ("query", "key", "value")


def is_plain(module: nn.Module) -> bool:
    """An attention over nothing but its inputs: without the key and value that `add_bias_kv` or `add_zero_attn` add."""
    return isinstance(module, nn.MultiheadAttention) and module.bias_k is None and not module.add_zero_attn


def projections(
    module: nn.MultiheadAttention, used: Sequence[tuple[Call, Tensor]], samples: slice = slice(None)
) -> dict[str, Rows]:
    """The rows of the projections "query", "key", "value" and "out", the positions of all calls one after the other.

    Args:
        used: calls with the gradients (S, *shape) at their outputs, one call at least.
        samples: which ones; all of them unless told.

    Cost: the module's forward pass, and for every signal its backward pass without weight gradients.
    """
    found = []
    for call, g in used:
        g = promoted(g if module.batch_first else g.transpose(1, 2))  # (S, B, L, E)
        found.append(_projections(module, _Inputs.of(module, call).of_samples(samples), g[:, samples]))
    return {
        name: (of_all_calls([rows[name][0] for rows in found], 1), of_all_calls([rows[name][1] for rows in found], 2))
        for name in found[0]
    }


def by_attribute(module: nn.MultiheadAttention, found: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """What was found for weight (..., m, n) and bias (..., m) of each projection, by the module's own parameters."""
    weights, biases = ({name: pair[i] for name, pair in found.items()} for i in (0, 1))
    if module._qkv_same_embed_dim:
        named = {"in_proj_weight": torch.cat([weights[name] for name in INPUTS], -2)}
    else:
        named = {f"{name[0]}_proj_weight": weights[name] for name in INPUTS}
    bias = torch.cat([biases[name] for name in INPUTS], -1)
    return named | {"in_proj_bias": bias, "out_proj.weight": weights["out"], "out_proj.bias": biases["out"]}


def samples_of(module: nn.MultiheadAttention, output: Tensor) -> int:
    """B, from an output or its gradient."""
    return output.shape[-3] if module.batch_first else output.shape[-2]


def score_count(module: nn.MultiheadAttention, call: Call) -> int:
    """Numbers in A for one sample."""
    inputs = _Inputs.of(module, call)
    return int(module.num_heads) * inputs.query.shape[1] * inputs.key.shape[1]


@dataclass(frozen=True)
class _Inputs:
    """Batch first: query (B, L, E), key (B, T, n), value (B, T, n), and what is added to the scores (·, ·, ·, T)."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None

    @staticmethod
    def of(module: nn.MultiheadAttention, call: Call) -> _Inputs:
        """Raises RuntimeError for what the module takes and this file does not."""
        try:
            query, key, value, padding, mask = _arguments(*call.args, **call.kwargs)
        except TypeError as error:
            raise RuntimeError(f"an attention with arguments of its own: {error}") from error
        if query.dim() != 3:
            raise RuntimeError("an attention without a batch dimension")
        inputs = [promoted(x if module.batch_first else x.transpose(0, 1)) for x in (query, key, value)]
        added = None
        if mask is not None:  # (L, T), or (B·heads, L, T)
            added = _added(mask, inputs[0])
            added = added if added.dim() == 2 else added.reshape(-1, module.num_heads, *added.shape[1:])
        if padding is not None:  # (B, T)
            hidden = _added(padding, inputs[0])[:, None, None]
            added = hidden if added is None else added + hidden
        return _Inputs(inputs[0], inputs[1], inputs[2], added)

    def of_samples(self, samples: slice) -> _Inputs:
        mask = self.mask if self.mask is None or self.mask.dim() == 2 else self.mask[samples]
        return _Inputs(self.query[samples], self.key[samples], self.value[samples], mask)


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # only a hint: the mask is there, too
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Those of `nn.MultiheadAttention.forward` that count here."""
    return query, key, value, key_padding_mask, attn_mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as it is added to scores; where a boolean one is true, nothing is seen."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)
    return mask.to(like.dtype)


def _projections(module: nn.MultiheadAttention, inputs: _Inputs, g: Tensor) -> dict[str, Rows]:
    """Of one call, from g (S, B, L, E)."""
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    tokens = (inputs.query, inputs.key, inputs.value)
    heads, scale = module.num_heads, module.head_dim**-0.5

    with torch.no_grad():
        q, k, v = (
            _split(F.linear(x, w.to(x), None if b is None else b.to(x)), heads)
            for x, w, b in zip(tokens, weights, biases, strict=True)
        )
        scores = scale * q @ k.mT
        scores = scores if inputs.mask is None else scores + inputs.mask
        a = scores.softmax(-1)  # (B, heads, L, T)
        if inputs.mask is not None:  # who may see nothing sees zeros, as in torch's fused attention
            a = a.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0.0)
        do = _split(g @ module.out_proj.weight.to(g), heads)  # (S, B, heads, L, d)
        dz = do @ v.mT
        dz = (dz - (a * dz).sum(-1, keepdim=True)).mul_(a).mul_(scale)  # (S, B, heads, L, T)
        back = dz @ k, dz.mT @ q, a.mT @ do
        rows = {name: (x, _joined(d)) for name, x, d in zip(INPUTS, tokens, back, strict=True)}
        return rows | {"out": (_joined(a @ v), g)}


def _split(x: Tensor, heads: int) -> Tensor:
    """(..., L, E) to (..., heads, L, d)."""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(-2, -3)


def _joined(x: Tensor) -> Tensor:
    """Back again."""
    return x.transpose(-2, -3).flatten(-2)
