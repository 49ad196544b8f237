"""Factors, bases and Fisher of one experience: everything that R-EWC remembers of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from avalanche_rewc.core import fisher as maths
from avalanche_rewc.core import geometry, gradients
from avalanche_rewc.core.bases import BasisFunction, eigen, is_orthogonal
from avalanche_rewc.core.capture import Call, Record, capture, evaluation_mode, samples_within
from avalanche_rewc.core.checks import number, one_of, whole_number
from avalanche_rewc.core.copies import forward_with_copies
from avalanche_rewc.core.memory import Memory, grow, grown
from avalanche_rewc.core.plan import Plan, check_finite, make_plan, parameter_name
from avalanche_rewc.core.reflections import DEFAULT_RANK
from avalanche_rewc.core.rotation import Rotation, spread
from avalanche_rewc.core.selection import LayerChoice
from avalanche_rewc.core.signals import FisherKind, fisher_signals
from avalanche_rewc.core.wrappers import unwrapped

ConvBasis = Literal["channel", "patch"]
Batch = tuple[tuple[Any, ...], Tensor | None]
"""Arguments of the model's forward (tensors with samples first, anything else is passed on), and the labels."""


def consolidate(
    model: nn.Module,
    batches: Callable[[], Iterable[Batch]],
    *,
    layers: LayerChoice = "all_but_last",
    conv_basis: ConvBasis = "channel",
    fisher: FisherKind = "exact",
    basis: BasisFunction = eigen,
    generator: torch.Generator | None = None,
    earlier: Memory | None = None,
    decay: float = 0.0,
    normalize: bool = True,
    rank: int | None = DEFAULT_RANK,
) -> Memory:
    """Estimate factors, bases and the diagonal Fisher of a plain (merged) model.

    Args:
        batches: called for each pass over the data (two, one if nothing is rotated); must give the same data each time.
        basis: from the two factors of a layer to its two bases.
        generator: for the labels of the sampled Fisher, on the CPU.
        earlier, decay: for online EWC. Factors are `decay · earlier + new`, and bases come from those; importances are
            the same sum, the earlier ones being spread over the new coordinates. `earlier` must have been made with a
            decay, too.
        normalize: let the penalty divide the importances by their sum, the trace of the Fisher. It is the same in all
            bases, and small for a model that is certain of its samples, by many orders of magnitude. With `decay`,
            output factors are divided by their trace, so that experiences weigh in the bases as in the penalty.
        rank: how many leading vectors of each basis become axes; None: all. With few of them a rotation is cheap.

    The model's modes, gradients and `requires_grad` are left as they were. Cost: two forward passes (one, if what they
    see fits into `KEPT_BYTES`), as many backward passes per signal without weight gradients, one eigendecomposition per
    side of a rotated layer.

    Raises:
        RuntimeError: no data, or a non-finite factor, Fisher or parameter; it names the layer. Nothing has been
            changed then.
    """
    one_of("conv_basis", conv_basis, get_args(ConvBasis))
    one_of("fisher", fisher, get_args(FisherKind))
    number("decay", decay, high=1.0)
    whole_number("rank", rank, 1, "for whole bases")
    generator = generator or torch.Generator().manual_seed(torch.initial_seed() % 2**63)
    model = unwrapped(model)
    parameters = dict(model.named_parameters())
    with evaluation_mode(model):
        probe = next(iter(batches()), None)
        if probe is None:
            raise RuntimeError("there are no samples to estimate the Fisher from")
        plan = make_plan(model, probe[0], layers)
        estimation = _Estimation(model, plan, batches, fisher, conv_basis == "patch", generator)
        memory = Memory(entries=plan.entries)
        rotations: dict[str, Rotation] = {}
        if plan.rotated:
            factors, memory.positions = estimation.factors()
            memory.factors = _decayed_factors(factors, earlier, decay, normalize)
            if basis is eigen:
                basis = partial(eigen, rank=rank)  # the other columns would only cost time
            rotations = {
                name: _bases(basis, rank, name, *pair).to(parameters[name]) for name, pair in memory.factors.items()
            }
        importances = estimation.diagonal(rotations)
    memory.scale = _scale(importances) if normalize else 1.0
    before = grow(earlier, parameters) if earlier is not None else Memory()
    for name, importance in importances.items():
        parameter = parameters[name].detach()
        if not geometry.all_finite(parameter):  # of a part that this experience did not use; others give no logits
            raise RuntimeError(f"parameter {name} is not finite, so it can be no anchor. {_WAY_OUT}")
        if name in rotations:
            memory.rotations[name] = rotations[name]
            memory.anchors[name] = rotations[name].to_rotated(parameter)
        else:
            memory.anchors[name] = parameter.clone()
        if name in before.importances:
            old = spread(before.importances[name], before.rotations.get(name), rotations.get(name))
            importance = importance + decay * before.scale / memory.scale * old.to(importance)
        memory.importances[name] = importance
    return memory


def _scale(importances: dict[str, Tensor]) -> float:
    """`1 / Σ F`; 1 with a warning if there is nothing to divide by."""
    total = sum(float(importance.sum(dtype=torch.float64)) for importance in importances.values())
    if total > SMALLEST_TRACE:
        return 1 / total
    warnings.warn(
        "the Fisher is zero everywhere: the model is so certain of these samples that no gradient is left in its "
        "precision, or its logits do not depend on the trainable parameters. Nothing will be protected; stop training "
        "earlier, or estimate in double precision",
        RuntimeWarning,
        stacklevel=3,
    )
    return 1.0


ACTIVATION_BYTES = 512 * 2**20
"""Batches are estimated from in parts whose activations stay near this size."""
KEPT_BYTES = 256 * 2**20
"""What the first pass saw is kept for the second up to this size."""
SMALLEST_TRACE = 1e-30
"""Below it a Fisher is nothing but rounding, and λ divided by it would overflow float32."""


@dataclass
class _Estimation:
    model: nn.Module
    plan: Plan
    batches: Callable[[], Iterable[Batch]]
    fisher: FisherKind
    patch: bool
    generator: torch.Generator

    def __post_init__(self) -> None:
        self.start = self.generator.get_state()
        self._kept: list[_Seen] | None = None

    def factors(self) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, tuple[float, float]]]:
        """The two factors of every rotated layer, means over samples, and its positions, by parameter name."""
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        positions: dict[str, tuple[float, float]] = {}
        samples = 0
        for seen in self._pass(again=True):
            samples += seen.samples
            for name, module in self.plan.rotated.items():
                if name not in seen.calls:
                    continue
                if seen.samples:
                    maths.add(inputs, {name: maths.input_factor(module, seen.calls[name], self.patch)})
                present = [g for g in seen.gradients[name] if g is not None]
                if present:
                    maths.add(outputs, {name: maths.output_factor(module, present)})
                    positions[name] = (
                        _rows_per_call(module, [call.input for call in seen.calls[name]], len(seen.signals[0])),
                        _rows_per_call(module, [g[0] for g in present], len(seen.signals[0])),
                    )
            del seen  # before the next one is made
        factors = {}
        for name in self.plan.rotated:
            pair = inputs[name] / samples, outputs[name] / samples
            if not all(geometry.all_finite(factor) for factor in pair):
                raise RuntimeError(_not_finite(parameter_name(name)))
            factors[parameter_name(name)] = pair
        return factors, {parameter_name(name): value for name, value in positions.items()}

    def diagonal(self, rotations: dict[str, Rotation]) -> dict[str, Tensor]:
        """The diagonal Fisher of every trainable parameter, mean over samples, in rotated coordinates."""
        parameters = dict(self.model.named_parameters())
        names = [*self.plan.closed, *self.plan.copied, *self.plan.general]
        totals = {name: torch.zeros_like(geometry.promoted(parameters[name].detach())) for name in names}
        samples = 0
        for seen in self._pass():
            samples += seen.samples
            self._add_closed(totals, rotations, seen)
            self._add_copied(totals, seen)
            if self.plan.general:
                self._add_general(totals, rotations, seen)
            del seen  # before the next one is made
        for name, total in totals.items():
            if not geometry.all_finite(total):
                raise RuntimeError(_not_finite(name))
        return {name: totals[name] / samples for name in parameters if name in totals}

    def _add_closed(self, totals: dict[str, Tensor], rotations: dict[str, Rotation], seen: _Seen) -> None:
        for module_name, attributes in self.plan.closed_by_module().items():
            if module_name not in seen.calls:
                continue
            rotation = rotations.get(parameter_name(module_name))
            module = self.plan.watched[module_name]
            calls, found = seen.calls[module_name], seen.gradients[module_name]
            squares = maths.squared_gradients(module, calls, found, rotation)
            for attribute, name in attributes.items():
                if attribute in squares:
                    totals[name] += squares[attribute]

    def _add_copied(self, totals: dict[str, Tensor], seen: _Seen) -> None:
        for name in self.plan.copied:
            for g in seen.gradients[name]:
                if g is not None:
                    totals[name] += geometry.promoted(g).square().sum((0, 1)).unsqueeze(0)

    def _add_general(self, totals: dict[str, Tensor], rotations: dict[str, Rotation], seen: _Seen) -> None:
        for per_sample in gradients.by_autograd(self.model, self.plan.general, seen.args, seen.signals):
            for name, value in per_sample.items():
                if name in rotations:
                    value = rotations[name].to_rotated(value, batch_dims=2)
                totals[name] += value.square().sum((0, 1))

    def _pass(self, *, again: bool = False) -> Iterator[_Seen]:
        """Everything there is to see, once. Every pass draws the same labels.

        Args:
            again: there will be another pass. If all of it fits into `KEPT_BYTES`, that one costs nothing.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[_Seen] = []
        size = 0
        for seen in self._look():
            if again and size <= KEPT_BYTES:
                size += seen.bytes()
                kept.append(seen)
            if size > KEPT_BYTES:
                kept.clear()
            yield seen
            del seen
        if again and size <= KEPT_BYTES:
            self._kept = kept

    def _look(self) -> Iterator[_Seen]:
        self.generator.set_state(self.start)
        at_once = 0
        for index, (whole, whole_labels) in enumerate(self.batches()):
            at_once = at_once or samples_within(ACTIVATION_BYTES, self.model, whole)
            for args, labels in _parts(whole, whole_labels, at_once):
                yield from self._look_at(args, labels, at_once, f"batch {index}")

    def _look_at(self, args: tuple[Any, ...], labels: Tensor | None, most: int, where: str) -> Iterator[_Seen]:
        with capture(self.plan.watched) as record:
            logits = forward_with_copies(self.model, args, self.plan.copied, record)
        check_finite(logits, where)
        signals = fisher_signals(self.fisher, logits, labels, self.generator)
        samples, at_once = logits.shape[0], _gradients_within(gradients.CHUNK_BYTES, record, len(logits))
        if self.plan.general:  # which sends each signal back through as many activations as a sample has
            at_once = min(at_once, most)
        if len(signals) > 1 and samples > 1 and at_once < len(signals) * samples:
            # Fewer samples with all of their signals: what depends on a sample alone is done once for all of them.
            del record, logits
            for part, part_labels in _parts(args, labels, max(1, at_once // len(signals))):
                yield from self._look_at(part, part_labels, most, where)
            return
        calls = {name: [replace(call, edge=None) for call in found] for name, found in record.calls.items()}
        for chunk in signals.split(max(1, at_once // samples)):  # type: ignore[no-untyped-call]
            kept = args if self.plan.general else ()
            yield _Seen(kept, chunk, samples, calls, record.stacked_gradients(logits, chunk))
            samples = 0  # counted


@dataclass(frozen=True)
class _Seen:
    """Some samples as the layers see them.

    Attributes:
        args: of the model's forward, if some gradients have to come from there.
        signals: (S, B, C), all of the batch's or some of them.
        samples: B with the first of a batch's signals, 0 with the others, so that each sample counts once.
        calls: the watched modules' inputs.
        gradients: of their outputs, for every call (S, B, ...), None where nothing came back.
    """

    args: tuple[Any, ...]
    signals: Tensor
    samples: int
    calls: dict[str, list[Call]]
    gradients: dict[str, list[Tensor | None]]

    def bytes(self) -> int:
        arguments = sum(call.bytes() for calls in self.calls.values() for call in calls)
        tensors = [a for a in self.args if isinstance(a, Tensor)]
        tensors += [g for found in self.gradients.values() for g in found if g is not None]
        return arguments + sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _parts(args: tuple[Any, ...], labels: Tensor | None, size: int) -> Iterator[Batch]:
    """A batch in parts of at most `size` samples."""
    count = next(len(a) for a in args if isinstance(a, Tensor))
    for start in range(0, count, size):
        part = slice(start, start + size)
        yield tuple(a[part] if isinstance(a, Tensor) else a for a in args), None if labels is None else labels[part]


def _rows_per_call(module: nn.Module, tensors: list[Tensor], samples: int) -> float:
    """Rows of one call and one sample; the bases are applied anew in every call."""
    return sum(geometry.row_count(module, t) for t in tensors) / len(tensors) / samples


def _gradients_within(budget: int, record: Record, samples: int) -> int:
    """For how many signals and samples the output gradients, all layers together, fit into so many bytes."""
    calls = [call for found in record.calls.values() for call in found]
    return budget * samples // max(1, sum(call.outputs * call.input.element_size() for call in calls))


def _bases(basis: BasisFunction, rank: int | None, name: str, input_factor: Tensor, output_factor: Tensor) -> Rotation:
    input_basis, output_basis = basis(input_factor, output_factor)
    for found, factor in ((input_basis, input_factor), (output_basis, output_factor)):
        size = factor.shape[-1]
        needed = size if rank is None else min(rank, size)
        if found.shape[:-1] != factor.shape[:-1] or not needed <= found.shape[-1] <= size:
            raise ValueError(
                f"basis: for {name} it returned shapes {tuple(input_basis.shape)} and {tuple(output_basis.shape)}; "
                f"they must be those of the factors, {tuple(input_factor.shape)} and {tuple(output_factor.shape)}"
                f"{'' if rank is None else f', or of their first {rank} columns or more'}"
            )
    for side, found in (("input", input_basis), ("output", output_basis)):
        if not is_orthogonal(found):
            raise ValueError(
                f"basis: for {name} it returned an {side} basis that is not orthogonal (UᵀU ≠ 1), so rotating the "
                "layer would change what it computes"
            )
    return Rotation(input_basis, output_basis).leading(rank)


def _decayed_factors(
    factors: dict[str, tuple[Tensor, Tensor]], earlier: Memory | None, decay: float, normalize: bool
) -> dict[str, tuple[Tensor, Tensor]]:
    if not decay:
        return factors
    total = sum(float(g.diagonal(dim1=-2, dim2=-1).sum(dtype=torch.float64)) for _, g in factors.values())
    scale = 1 / total if normalize and total > SMALLEST_TRACE else 1.0
    before = {} if earlier is None else earlier.factors
    result = {}
    for name, (a, g) in factors.items():
        g = scale * g
        if name in before:
            a, g = (now + decay * grown(then, now.shape) for now, then in zip((a, g), before[name], strict=True))
        result[name] = a, g
    return result


def _not_finite(name: str) -> str:
    return (
        f"the Fisher of {name} is not finite: its gradients are NaN or overflow on some sample of this experience. "
        f"{_WAY_OUT}"
    )


_WAY_OUT = (
    "The importances of earlier experiences are kept; lower the learning rate, clip gradients, scale the inputs, or "
    "freeze that parameter"
)
