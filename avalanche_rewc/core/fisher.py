"""Kronecker factors and the diagonal Fisher in rotated coordinates, from captured rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from avalanche_rewc.core import geometry, gradients
from avalanche_rewc.core.capture import Call
from avalanche_rewc.core.rotation import Rotation


def input_factor(module: nn.Module, calls: Sequence[Call], patch: bool) -> Tensor:
    """`Σ x xᵀ` over samples and positions, shape (g, q, q).

    Channel basis (and Linear): over the positions of the unpadded input. Patch basis: over the output positions'
    patches. Cost: rows · q².
    """
    rows = geometry.patch_rows if patch else geometry.input_rows
    return sum_of_outer_products(rows(module, geometry.promoted(call.input)) for call in calls)


def output_factor(module: nn.Module, output_gradients: Sequence[Tensor]) -> Tensor:
    """`Σ g gᵀ` over signals, samples and output positions, shape (g, m, m); gradients are (signals, samples, ...)."""
    flat = [g.flatten(0, 1) if geometry.is_batched(module, g[0]) else g for g in output_gradients]
    return sum_of_outer_products(geometry.output_rows(module, geometry.promoted(g)) for g in flat)


def sum_of_outer_products(batches: Iterable[Tensor]) -> Tensor:
    """Of rows (B, P, g, c): (g, c, c)."""
    total: Tensor | None = None
    for rows in batches:
        product = finite_product("bpgi,bpgj->gij", rows, rows)
        total = product if total is None else total + product
    assert total is not None
    return total


def finite_product(formula: str, left: Tensor, right: Tensor) -> Tensor:
    """`einsum` of two finite tensors; in float64 where float32 overflows, as it does for squares of activations of
    2·10¹⁹. The result is not finite only if an operand is not."""
    product = torch.einsum(formula, left, right)
    if product.dtype == torch.float64 or torch.isfinite(product).all():
        return product
    return torch.einsum(formula, left.double(), right.double())


def squared_gradients(
    module: nn.Module, calls: Sequence[Call], output_gradients: Sequence[Tensor | None], rotation: Rotation | None
) -> dict[str, Tensor]:
    """`Σ_signals Σ_samples (dθ')²` of a module's `weight` (rotated) and `bias` (as it is).

    Args:
        output_gradients: for each call, (signals, samples, ...); None where nothing came back.

    A gradient is first summed over the calls and positions of a sample and only then squared. Where every sample has
    one row in one call, squares factorise, `Σ (g' x'ᵀ)² = (g'²)ᵀ (x'²)`, and no per-sample gradient is ever formed.
    """
    used = [(call.input, g) for call, g in zip(calls, output_gradients, strict=True) if g is not None]
    if not used:
        return {}
    if isinstance(module, gradients.Norm):
        return _squared_affine(module, used)
    totals: dict[str, Tensor] = {}
    for part in _sample_chunks(module, used):
        chunk = [(geometry.promoted(x[part]), geometry.promoted(g[:, part])) for x, g in used]
        add(totals, _squared_linear(module, chunk, rotation))
    return totals


def _squared_linear(
    module: nn.Module, used: Sequence[tuple[Tensor, Tensor]], rotation: Rotation | None
) -> dict[str, Tensor]:
    weight = geometry.weight_of(module)
    plain = []
    for _, g in used:
        rows = geometry.output_rows(module, g.flatten(0, 1))
        plain.append(rows.reshape(*g.shape[:2], *rows.shape[1:]))  # (S, B, P, g, m)
    bias = torch.cat(plain, dim=2).sum(2).square().sum((0, 1)).flatten()  # biases are not rotated

    single_row = len(used) == 1 and plain[0].shape[2] == 1
    by_rows = rotation is not None and (single_row or _rows_are_cheaper(module, used, rotation))
    inputs, outputs = [], []
    for (x, _), rows in zip(used, plain, strict=True):
        inputs.append(_rotated_patch_rows(module, x, rotation if by_rows else None))
        # g' = U2ᵀ g for every row
        outputs.append(torch.einsum("sbpgm,gmk->sbpgk", rows, rotation.output_basis) if rotation and by_rows else rows)
    x_rows, g_rows = torch.cat(inputs, dim=1), torch.cat(outputs, dim=2)  # (B, P, g, q), (S, B, P, g, m)

    if single_row:
        squares = _product_of_squares(g_rows, x_rows)
        return {"weight": squares.reshape(weight.shape), "bias": bias}
    products = torch.einsum("sbpgm,bpgq->sbgmq", g_rows, x_rows).reshape(*g_rows.shape[:2], *weight.shape)
    if rotation is not None and not by_rows:
        products = rotation.to_rotated(products, batch_dims=2)
    return {"weight": products.square().sum((0, 1)), "bias": bias}


def _product_of_squares(g_rows: Tensor, x_rows: Tensor) -> Tensor:
    """`(g²)ᵀ (x²)` per group. One may overflow float32 where the product does not: then in float64."""
    squares = torch.einsum("bgm,bgq->gmq", g_rows.square().sum((0, 2)), x_rows.square().sum(1))
    if squares.dtype == torch.float64 or torch.isfinite(squares).all():
        return squares
    return _product_of_squares(g_rows.double(), x_rows.double())


def _rotated_patch_rows(module: nn.Module, x: Tensor, rotation: Rotation | None) -> Tensor:
    """Patches of the rotated input, (B, P, g, n·K)."""
    if rotation is None:
        return geometry.patch_rows(module, x)
    if rotation.mixes_positions(geometry.weight_of(module)):
        return torch.einsum("bpgq,gqs->bpgs", geometry.patch_rows(module, x), rotation.input_basis)
    # Channels may be rotated before padding and unfolding: both act on each channel alike.
    return geometry.patch_rows(module, geometry.rotate_positions(module, x, rotation.input_basis.mT))


def _rows_are_cheaper(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]], rotation: Rotation) -> bool:
    """Multiplications per sample: rotating its rows, or rotating its gradient."""
    m, q = rotation.output_basis.shape[-1], rotation.input_basis.shape[-1]
    signals = used[0][1].shape[0]
    patch = rotation.mixes_positions(geometry.weight_of(module))
    r = 1 if patch else geometry.kernel_positions(module)
    rows = 0
    for x, g in used:
        p_out = geometry.positions(module, g[0])
        p_in = p_out if patch else geometry.positions(module, x)
        rows += p_in * q * q + signals * p_out * m * m
    return rows <= signals * m * q * r * (m + q)


def _sample_chunks(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]]) -> Iterator[slice]:
    """Slices of samples whose patches and per-sample gradients stay near `gradients.CHUNK_BYTES`."""
    weight = geometry.weight_of(module)
    signals, samples = used[0][1].shape[:2]
    rows = sum(geometry.positions(module, g[0]) for _, g in used)
    width = weight.shape[1] * geometry.kernel_positions(module) * geometry.groups(module)
    single_row = rows == 1
    elements = rows * (width + signals * weight.shape[0]) + (0 if single_row else 2 * signals * weight.numel())
    size = max(1, gradients.CHUNK_BYTES // (elements * 4))
    for start in range(0, samples, size):
        yield slice(start, min(start + size, samples))


def _squared_affine(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    totals: dict[str, Tensor] = {}
    calls = [Call(x, None) for x, _ in used]
    for signal in range(used[0][1].shape[0]):
        per_sample = gradients.closed_form(module, calls, [g[signal] for _, g in used])
        add(totals, {name: value.square().sum(0) for name, value in per_sample.items()})
    return totals


def add(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    """Sums by name."""
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value
