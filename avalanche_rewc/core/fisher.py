"""Kronecker factors and the diagonal Fisher in rotated coordinates, from captured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from avalanche_rewc.core import attention, geometry, gradients
from avalanche_rewc.core.capture import Call
from avalanche_rewc.core.rotation import Matrix, Rotation, apply_to_rows, cost_of_a_row

CPU_CHUNK_BYTES = 8 * 2**20
"""On a CPU patches and per-sample gradients are made in blocks of about this size. What is larger the
allocator gives back to the operating system after every use, and fetches page by page for the next one, which took up
to half of the time; calls on much smaller ones begin to count."""
STRIP = 64
"""Columns of a symmetric product that are computed together, at least."""
FEW_ROWS = 512
"""With fewer, to mirror a symmetric product takes as long as to compute it whole."""
LARGE = 2**13
"""Numbers in a tensor, from which on its arithmetic costs more than the call from Python."""


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
    """Of rows (B, P, g, c): (g, c, c). A product that overflows float32 is taken in float64, as that of activations of
    2·10¹⁹."""
    total: Tensor | None = None
    for rows in batches:
        product = _finite(_gram, rows.flatten(0, 1).transpose(0, 1).mT)  # (g, c, rows)
        total = product if total is None else _together(total, product)
    assert total is not None
    return total


def _finite(way: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """What `way` makes of finite tensors; in float64 where float32 overflows."""
    found = way(*operands)
    if found.dtype == torch.float64 or geometry.all_finite(found):
        return found
    return way(*(operand.double() for operand in operands))


def _gram(columns: Tensor) -> Tensor:
    """`X Xᵀ` of X (g, c, rows). It is symmetric: strips from the diagonal on are computed, and mirrored."""
    size, width = columns.shape[1], max(STRIP, columns.shape[1] // 16)
    if size <= 2 * width or columns.shape[2] < FEW_ROWS:
        return columns @ columns.mT
    product = columns.new_empty(columns.shape[0], size, size)
    for start in range(0, size, width):
        here = slice(start, start + width)
        strip = columns[:, here] @ columns[:, start:].mT
        product[:, here, start:] = strip
        product[:, start:, here] = strip.mT
    return product


def squared_gradients(
    module: nn.Module, calls: Sequence[Call], output_gradients: Sequence[Tensor | None], rotation: Rotation | None
) -> dict[str, Tensor]:
    """`Σ_signals Σ_samples (dθ')²` of a module's parameters: the weight rotated, others as they are.

    Args:
        output_gradients: for each call, (signals, samples, ...); None where nothing came back.

    A gradient is first summed over the calls and positions of a sample and only then squared.
    """
    called = [(call, g) for call, g in zip(calls, output_gradients, strict=True) if g is not None]
    if not called:
        return {}
    if isinstance(module, nn.MultiheadAttention):
        return _squared_attention(module, called)
    used = [(call.input, g) for call, g in called]
    if isinstance(module, gradients.Norm):
        return _squared_affine(module, used)
    by_rows = rotation is None or _rows_are_cheaper(module, used, rotation)
    totals: dict[str, Tensor] = {}
    for signals, samples in _blocks_of(module, used, by_rows):
        block = [(geometry.promoted(x[samples]), geometry.promoted(g[signals, samples])) for x, g in used]
        add(totals, _squared_linear(module, block, rotation, by_rows))
    return totals


def _squared_linear(
    module: nn.Module, used: Sequence[tuple[Tensor, Tensor]], rotation: Rotation | None, by_rows: bool
) -> dict[str, Tensor]:
    weight = geometry.weight_of(module)
    plain = []
    for _, g in used:
        rows = geometry.output_rows(module, g.flatten(0, 1))
        plain.append(rows.reshape(*g.shape[:2], *rows.shape[1:]))  # (S, B, P, g, m)
    bias = _squares_summed(_over_positions(geometry.of_all_calls(plain, 2))).sum(0).flatten()  # not rotated
    inputs, outputs = [], []
    for (x, _), rows in zip(used, plain, strict=True):
        inputs.append(_rotated_patch_rows(module, x, rotation if by_rows else None))
        # g' = U2ᵀ g for every row
        outputs.append(_rotated_rows(rows, rotation.output_matrix) if rotation and by_rows else rows)
    x_rows, g_rows = (
        geometry.of_all_calls(inputs, 1),
        geometry.of_all_calls(outputs, 2),
    )  # (B, P, g, q), (S, B, P, g, m)
    if by_rows:
        return {"weight": sum_of_squares(g_rows, x_rows).reshape(weight.shape), "bias": bias}
    assert rotation is not None
    products = _products(g_rows, x_rows)
    products = products.reshape(*products.shape[:2], *weight.shape)
    rotated = rotation.to_rotated(products, batch_dims=2).flatten(0, 1)
    return {"weight": _squares_summed(rotated, ours=True), "bias": bias}


def _squared_attention(module: nn.MultiheadAttention, called: Sequence[tuple[Call, Tensor]]) -> dict[str, Tensor]:
    signals, samples = called[0][1].shape[0], attention.samples_of(module, called[0][1])
    scores = sum(attention.score_count(module, call) for call, _ in called)
    numbers = sum(call.numel() for call, _ in called) // samples
    totals: dict[str, Tensor] = {}
    each = 3 * scores + 5 * numbers + 2 * module.embed_dim * max(module.embed_dim, module.kdim, module.vdim)
    for few, part in _blocks(signals, samples, scores + numbers, each, called[0][1].device):
        rows = attention.projections(module, [(call, g[few]) for call, g in called], part)
        found = {}
        for name, (x, g) in rows.items():
            squares = sum_of_squares(g.unsqueeze(3), x.unsqueeze(2)).squeeze(0)
            found[name] = squares, _squares_summed(_over_positions(g)).sum(0)
        add(totals, attention.by_attribute(module, found))
    return totals


def sum_of_squares(g_rows: Tensor, x_rows: Tensor) -> Tensor:
    """`Σ_signals Σ_samples (Σ_positions g xᵀ)²` of rows (S, B, P, g, m) and (B, P, g, q): (g, m, q).

    In the cheapest of two ways, and in float64 where float32 overflows, as a square may although the product does not.
    """
    signals, _, positions, _, _ = g_rows.shape
    way = _squares_of_pairs if _pairs_are_cheaper(signals, positions, x_rows.shape[-1]) else _squares_of_products
    return _finite(way, g_rows, x_rows)


def _squares_of_products(g_rows: Tensor, x_rows: Tensor) -> Tensor:
    """As it is written: a gradient for every signal and sample. Cost: S·B·P·m·q."""
    return _squares_summed(_products(g_rows, x_rows).flatten(0, 1), ours=True)


def _products(g_rows: Tensor, x_rows: Tensor) -> Tensor:
    """`Σ_positions g xᵀ`, (B, S, g, m, q): in this order, with one group, as the product has it in memory."""
    return torch.einsum("sbpgm,bpgq->bsgmq", g_rows, x_rows)


def _squares_of_pairs(g_rows: Tensor, x_rows: Tensor) -> Tensor:
    """`Σ_samples Σ_{p,t} (Σ_signals g_p g_t) (x_p x_t)`: the square written out as pairs of positions.

    Signals are summed up before the inputs are met, so that no gradient is ever formed. With one position it is
    `(g²)ᵀ (x²)`. Cost: B·P²·m·(S + q). Rounding may leave a small negative number where the true one is zero.
    """
    if g_rows.shape[2] == 1:
        outputs, inputs = _squares_summed(g_rows), x_rows.square()
    else:
        outputs = torch.einsum("sbpgm,sbtgm->bptgm", g_rows, g_rows).flatten(1, 2)
        inputs = torch.einsum("bpgq,btgq->bptgq", x_rows, x_rows).flatten(1, 2)
    return torch.einsum("bpgm,bpgq->gmq", outputs, inputs).clamp_(min=0)


def _squares_summed(rows: Tensor, *, ours: bool = False) -> Tensor:
    """`Σ r²` over the first dimension. Large ones one after the other: for the squares of all of them memory would be
    fetched anew, which takes several times as long as the arithmetic.

    Args:
        ours: they may be overwritten, which small ones are.
    """
    if rows.device.type != "cpu" or rows[0].numel() < LARGE:
        return (rows.square_() if ours else rows.square()).sum(0)
    total = rows[0].square()
    for row in rows[1:]:
        total.addcmul_(row, row)
    return total


def _over_positions(rows: Tensor) -> Tensor:
    """`Σ_positions r` of rows (S, B, P, ...): (S, B, ...), without a copy if there is only one."""
    return rows.squeeze(2) if rows.shape[2] == 1 else rows.sum(2)


def _pairs_are_cheaper(signals: int, positions: int, inputs: int) -> bool:
    """Than products, by multiplications; q is what `inputs` says."""
    return positions == 1 or positions * (signals + inputs) < signals * inputs


def _rotated_patch_rows(module: nn.Module, x: Tensor, rotation: Rotation | None) -> Tensor:
    """Patches of the rotated input, (B, P, g, n·K)."""
    if rotation is None:
        return geometry.patch_rows(module, x)
    if rotation.mixes_positions(geometry.weight_of(module)):
        return _rotated_rows(geometry.patch_rows(module, x), rotation.input_matrix)
    # Channels may be rotated before padding and unfolding: both act on each channel alike.
    return geometry.patch_rows(module, geometry.rotate_positions(module, x, rotation.input_matrix.mT))


def _rotated_rows(rows: Tensor, matrix: Matrix) -> Tensor:
    """`Uᵀ r` for every row r of every group: rows (..., g, d)."""
    flat = rows.reshape(-1, *rows.shape[-2:]).transpose(0, 1)  # (g, rows, d)
    return apply_to_rows(flat, matrix).transpose(0, 1).reshape(rows.shape)


def _rows_are_cheaper(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]], rotation: Rotation) -> bool:
    """Multiplications per sample: rotating its rows before they are squared, or rotating its gradients."""
    m, q = rotation.output_basis.shape[-1], rotation.input_basis.shape[-1]
    signals, positions = used[0][1].shape[0], _positions(module, used)
    patch = rotation.mixes_positions(geometry.weight_of(module))
    r = 1 if patch else geometry.kernel_positions(module)
    products = squares = signals * positions * m * q * r
    if _pairs_are_cheaper(signals, positions, q * r):
        squares = positions**2 * m * (signals + q * r)
    rows_in = positions if patch else sum(geometry.positions(module, x) for x, _ in used)
    one_input, one_output = cost_of_a_row(rotation.input_matrix), cost_of_a_row(rotation.output_matrix)
    by_rows = rows_in * one_input + signals * positions * one_output + squares
    return positions == 1 or by_rows <= products + signals * r * (m * one_input + q * one_output)


def _positions(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]]) -> int:
    """Of the outputs of all calls together, per sample."""
    return sum(geometry.positions(module, g[0]) for _, g in used)


def _blocks_of(
    module: nn.Module, used: Sequence[tuple[Tensor, Tensor]], by_rows: bool
) -> Iterator[tuple[slice, slice]]:
    """Blocks whose patches, pairs or per-sample gradients stay within the budget."""
    weight, groups = geometry.weight_of(module), geometry.groups(module)
    signals, samples = used[0][1].shape[:2]
    positions, inputs = _positions(module, used), weight.shape[1] * geometry.kernel_positions(module)
    each_sample, each_signal = positions * inputs * groups, positions * weight.shape[0]
    if by_rows and _pairs_are_cheaper(signals, positions, inputs):
        each_sample += positions**2 * (weight.shape[0] + inputs * groups)
    else:
        # One that is rotated, or of several groups, is copied.
        each_signal += weight.numel() if by_rows and groups == 1 else 2 * weight.numel()
    return _blocks(signals, samples, each_sample, each_signal, weight.device)


def _blocks(
    signals: int, samples: int, each_sample: int, each_signal: int, device: torch.device
) -> Iterator[tuple[slice, slice]]:
    """Slices of signals and of samples that stay near the device's budget; all signals of a sample if they may.

    Args:
        each_sample, each_signal: numbers in memory for a sample, and for every signal of a sample.
    """
    allowed = gradients.CHUNK_BYTES if device.type != "cpu" else min(gradients.CHUNK_BYTES, CPU_CHUNK_BYTES)
    budget = allowed // 4
    few = min(signals, max(1, (budget - each_sample) // each_signal))
    part = max(1, budget // (each_sample + few * each_signal))
    for start in range(0, samples, part):
        for first in range(0, signals, few):
            yield slice(first, min(first + few, signals)), slice(start, min(start + part, samples))


def _squared_affine(module: nn.Module, used: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    totals: dict[str, Tensor] = {}
    calls = [Call((x,)) for x, _ in used]
    for signal in range(used[0][1].shape[0]):
        per_sample = gradients.closed_form(module, calls, [g[signal] for _, g in used])
        add(totals, {name: value.square().sum(0) for name, value in per_sample.items()})
    return totals


def add(totals: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    """Sums by name."""
    for name, value in more.items():
        totals[name] = _together(totals[name], value) if name in totals else value


def _together(total: Tensor, value: Tensor) -> Tensor:
    """Their sum, in the memory of the first one if both have one precision."""
    return total.add_(value) if total.dtype == value.dtype else total + value
