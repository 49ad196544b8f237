"""How diagonal is a layer's Fisher information, before and after rotation?

EWC keeps the diagonal of the Fisher and forgets the rest. The *kept energy* of a layer is the share of the Frobenius
norm that survives that, `Σ_i F_ii² / Σ_ij F_ij²`. A rotation changes the first sum and not the second.

    batches = experience_batches(model, experience)
    memory = strategy.rewc.memories[-1]
    for energy in kept_energies(model, batches, memory.rotations):
        print(energy)
    plot_fisher(model, batches, "body.3", memory.rotations["body.3.weight"]).savefig("fisher.png")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core.capture import capture, evaluation_mode
from avalanche_rewc.core.consolidate import Batch
from avalanche_rewc.core.gradients import CHUNK_BYTES, by_autograd, closed_form
from avalanche_rewc.core.plan import Plan, make_plan, parameter_name
from avalanche_rewc.core.rotation import Rotation
from avalanche_rewc.core.signals import FisherKind, fisher_signals
from avalanche_rewc.core.wrappers import unwrapped
from avalanche_rewc.options import DEFAULT_SAMPLES

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
    model: nn.Module,
    experience: Any,
    samples_per_class: int | None = DEFAULT_SAMPLES,
    *,
    batch_size: int = 64,
    seed: int = 0,
) -> Batches:
    """Samples of an Avalanche experience, drawn as the plug-in draws them, on the model's device."""
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
    energies = {name: _Energy(rotations[name], max_rows, seed) for name in rotations}
    for name, rows in _gradient_rows(model, batches, list(rotations), fisher, seed):
        energies[name].add(rows)
    return [KeptEnergy(name, *energy.shares(), exact=energy.exact) for name, energy in energies.items()]


class _Energy:
    """Sums over the gradient rows of one weight, and a uniform choice of them."""

    def __init__(self, rotation: Rotation, max_rows: int, seed: int) -> None:
        self.rotation, self.max_rows = rotation, max_rows
        self.generator = torch.Generator().manual_seed(seed)
        self.diagonals: list[Tensor] | None = None
        self.fourth_powers = 0.0
        self.count = 0
        self.keys, self.chosen = torch.zeros(0, dtype=torch.float64), torch.zeros(0)

    def add(self, rows: Tensor) -> None:
        rotated = self.rotation.to(rows).to_rotated(rows, batch_dims=1)
        squares = [each.square().sum(0).double() for each in (rows, rotated)]
        self.diagonals = [a + b for a, b in zip(self.diagonals, squares, strict=True)] if self.diagonals else squares
        flat = rows.flatten(1)
        self.fourth_powers += float(flat.double().square().sum(1).square().sum())
        self.count += len(flat)
        # The rows with the largest random keys are a uniform choice of all rows so far.
        self.keys = torch.cat([self.keys, torch.rand(len(flat), dtype=torch.float64, generator=self.generator)])
        rows_so_far = torch.cat([self.chosen.to(flat), flat]) if len(self.chosen) else flat
        limit = max(2, min(self.max_rows, CHUNK_BYTES // (flat.shape[1] * flat.element_size())))
        best = self.keys.topk(min(limit, len(self.keys))).indices.sort().values
        self.keys, self.chosen = self.keys[best], rows_so_far[best.to(flat.device)]

    @property
    def exact(self) -> bool:
        return len(self.chosen) == self.count

    def shares(self) -> tuple[float, float]:
        if self.diagonals is None:
            return math.nan, math.nan
        products = (self.chosen.double() @ self.chosen.double().T).square()
        cross = float(products.sum() - products.diagonal().sum())
        if not self.exact:
            taken = len(self.chosen)
            cross *= self.count * (self.count - 1) / (taken * (taken - 1))
        whole = self.fourth_powers + cross
        if whole <= 0:
            return math.nan, math.nan
        # An estimate of the whole may come out a little smaller than the diagonal, which is a part of it.
        before, after = (min(1.0, float(diagonal.square().sum()) / whole) for diagonal in self.diagonals)
        return before, after


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
    size = unwrapped(model).get_parameter(parameter).numel()
    if size > MAX_MATRIX:
        raise ValueError(
            f"{parameter} has {size} weights: its Fisher would have {size * size:.1e} entries. kept_energies does "
            "without the matrix"
        )
    total: Tensor | float = 0.0
    samples = 0
    for args, _ in batches():
        samples += next(len(a) for a in args if isinstance(a, Tensor))
    for _, rows in _gradient_rows(model, batches, [parameter], fisher, seed):
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

    name = parameter_name(layer)
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
    model: nn.Module, batches: Batches, names: Sequence[str], fisher: FisherKind, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Gradients (B, *shape) of each named parameter, for each batch and signal."""
    generator = torch.Generator().manual_seed(seed)
    plan: Plan | None = None
    model = unwrapped(model)
    with evaluation_mode(model):
        for args, labels in batches():
            plan = plan or make_plan(model, args, "none")
            closed = {name: plan.closed[name] for name in names if name in plan.closed}
            general = [name for name in names if name not in closed]
            watched = {module_name: model.get_submodule(module_name) for module_name, _ in closed.values()}
            with capture(watched) as record:
                logits = model(*args)
            signals = fisher_signals(fisher, logits, labels, generator)
            for signal in signals if closed else ():
                gradients = record.output_gradients(logits, signal)
                for name, (module_name, attribute) in closed.items():
                    if module_name in gradients:
                        found = closed_form(watched[module_name], record.calls[module_name], gradients[module_name])
                        yield name, found[attribute].detach()
            if general:
                for per_sample in by_autograd(model, general, args, signals):
                    for name, value in per_sample.items():
                        yield name, value.flatten(0, 1)
