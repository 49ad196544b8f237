"""How diagonal is a layer's Fisher information, before and after rotation?

EWC keeps the diagonal of the Fisher and forgets the rest. The *kept energy* of a layer is the share of the Frobenius
norm that survives that, `Σ_i F_ii² / Σ_ij F_ij²`. A rotation changes the first sum and not the second.

    batches = experience_batches(model, experience, samples_per_class=40)
    memory = strategy.rewc.memories[-1]
    for energy in kept_energies(model, batches, memory.rotations):
        logging.info("%s", energy)
    plot_fisher(model, batches, "fc2", memory.rotations["fc2.weight"]).savefig("fisher.png")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core.capture import capture, evaluation_mode
from avalanche_rewc.core.consolidate import Batch
from avalanche_rewc.core.gradients import CHUNK_BYTES, by_autograd, closed_form
from avalanche_rewc.core.plan import Plan, make_plan
from avalanche_rewc.core.rotation import Rotation
from avalanche_rewc.core.signals import FisherKind, fisher_signals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batches = Callable[[], Iterable[Batch]]
MAX_ROWS = 2048
MAX_MATRIX = 4096


@dataclass(frozen=True)
class KeptEnergy:
    """The share of a weight's Fisher energy on the diagonal, in the original and in the rotated coordinates.

    `exact` says whether every sample's gradient went into the whole matrix's energy, or a random part of them.
    """

    parameter: str
    before: float
    after: float
    exact: bool

    def __str__(self) -> str:
        about = "" if self.exact else "about "
        return (
            f"{self.parameter}: the diagonal keeps {about}{self.before:.1%} before and {self.after:.1%} after rotation"
        )


def experience_batches(
    model: nn.Module, experience: Any, samples_per_class: int | None = 40, *, batch_size: int = 64, seed: int = 0
) -> Batches:
    """Samples of an Avalanche experience, as the plug-in would draw them, on the model's device."""
    from avalanche_rewc.sampling import ExperienceBatches

    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    return ExperienceBatches(
        model, experience, samples_per_class, generator=generator, batch_size=batch_size, device=device
    )


def kept_energies(
    model: nn.Module,
    batches: Batches,
    rotations: Mapping[str, Rotation],
    *,
    fisher: FisherKind = "exact",
    max_rows: int = MAX_ROWS,
    seed: int = 0,
) -> list[KeptEnergy]:
    """The kept energy of every rotated weight.

    With gradient rows j (one per sample and signal), `F = Σ j jᵀ / N` and `Σ_ij F_ij² = Σ_st (j_s · j_t)² / N²`: the
    matrix itself is never made. Up to `max_rows` rows (fewer if the weight is large) that sum is exact; with more, the
    terms s ≠ t are estimated, without bias, from a random choice of rows.
    """
    return [_kept_energy(model, batches, name, rotations[name], fisher, max_rows, seed) for name in rotations]


def _kept_energy(
    model: nn.Module, batches: Batches, name: str, rotation: Rotation, fisher: FisherKind, max_rows: int, seed: int
) -> KeptEnergy:
    generator = torch.Generator().manual_seed(seed)
    before: Tensor | float = 0.0
    after: Tensor | float = 0.0
    fourth_powers = 0.0
    count = 0
    keys = torch.zeros(0, dtype=torch.float64)
    kept: list[Tensor] = []
    for rows in _gradient_rows(model, batches, name, fisher, seed):
        rotated = rotation.to(rows).to_rotated(rows, batch_dims=1)
        before = before + rows.square().sum(0).double()
        after = after + rotated.square().sum(0).double()
        flat = rows.flatten(1)
        fourth_powers += float(flat.double().square().sum(1).square().sum())
        count += len(flat)
        # The rows with the largest random keys are a uniform choice of all rows so far.
        keys = torch.cat([keys, torch.rand(len(flat), dtype=torch.float64, generator=generator)])
        kept.extend(flat.unbind())
        limit = max(2, min(max_rows, CHUNK_BYTES // (flat.shape[1] * flat.element_size())))
        if len(kept) > limit:
            best = keys.topk(limit).indices.sort().values
            keys, kept = keys[best], [kept[int(i)] for i in best]
    sample = torch.stack(kept).double()
    products = (sample @ sample.T).square()
    cross = float(products.sum() - products.diagonal().sum())
    taken = len(kept)
    if taken < count:
        cross *= count * (count - 1) / (taken * (taken - 1))
    whole = fourth_powers + cross
    shares = [float(diagonal.square().sum()) / whole for diagonal in (before, after)]  # type: ignore[union-attr]
    return KeptEnergy(name, shares[0], shares[1], exact=taken == count)


def fisher_matrix(
    model: nn.Module,
    batches: Batches,
    parameter: str,
    rotation: Rotation | None = None,
    *,
    fisher: FisherKind = "exact",
    seed: int = 0,
) -> Tensor:
    """The full Fisher of one weight, (numel, numel), in rotated coordinates if a rotation is given. Small ones only."""
    size = model.get_parameter(parameter).numel()
    if size > MAX_MATRIX:
        raise ValueError(
            f"{parameter} has {size} weights: its Fisher would have {size * size:.1e} entries. kept_energies does "
            "without the matrix"
        )
    total: Tensor | float = 0.0
    samples = 0
    for args, _ in batches():
        samples += next(len(a) for a in args if isinstance(a, Tensor))
    for rows in _gradient_rows(model, batches, parameter, fisher, seed):
        rows = rows if rotation is None else rotation.to(rows).to_rotated(rows, batch_dims=1)
        flat = rows.flatten(1)
        total = total + flat.T @ flat
    assert isinstance(total, Tensor)
    return total / samples


def diagonal_share(matrix: Tensor) -> float:
    """`Σ_i F_ii² / Σ_ij F_ij²` of a matrix."""
    return float(matrix.diagonal().square().sum() / matrix.square().sum())


def plot_fisher(
    model: nn.Module,
    batches: Batches,
    layer: str,
    rotation: Rotation,
    *,
    fisher: FisherKind = "exact",
    seed: int = 0,
) -> Figure:
    """Heat-maps of a small layer's Fisher before and after rotation (the paper's Fig. FIM), with the kept energy.

    Colours are the logarithm of the entries' magnitude relative to the largest, the same in both pictures.
    """
    from matplotlib.figure import Figure

    name = f"{layer}.weight"
    matrices = [fisher_matrix(model, batches, name, r, fisher=fisher, seed=seed).cpu() for r in (None, rotation)]
    top = max(float(matrix.abs().max()) for matrix in matrices)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, matrix, title in zip(axes, matrices, ("original", "rotated"), strict=True):
        magnitude = (matrix.abs() / top).clamp(min=1e-4).log10()
        image = axis.imshow(magnitude.numpy(), vmin=-4, vmax=0, cmap="magma", interpolation="nearest")
        axis.set_title(f"{title}: the diagonal keeps {diagonal_share(matrix):.1%}")
        axis.set_xlabel("weight")
    axes[0].set_ylabel("weight")
    figure.colorbar(image, ax=axes, label="log₁₀ of the magnitude, relative to the largest entry", shrink=0.9)
    figure.suptitle(f"Fisher information of {name}")
    return figure


def _gradient_rows(
    model: nn.Module, batches: Batches, parameter: str, fisher: FisherKind, seed: int
) -> Iterator[Tensor]:
    """Gradients of one parameter, (B, *shape), for each batch and signal."""
    generator = torch.Generator().manual_seed(seed)
    plan: Plan | None = None
    with evaluation_mode(model):
        for args, labels in batches():
            plan = plan or make_plan(model, args, "none")
            module_name, attribute = plan.closed.get(parameter, (None, ""))
            watched = {} if module_name is None else {module_name: model.get_submodule(module_name)}
            with capture(watched) as record:
                logits = model(*args)
            signals = fisher_signals(fisher, logits, labels, generator)
            for signal in signals:
                if module_name is None:
                    for _, found in by_autograd(model, [parameter], args, signal):
                        yield found[parameter]
                else:
                    gradients = record.output_gradients(logits, signal)[module_name]
                    calls = record.calls[module_name]
                    yield closed_form(watched[module_name], calls, gradients)[attribute].detach()
