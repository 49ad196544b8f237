"""What will be done to each parameter, found out by a probe of three samples before anything is estimated.

Per-sample gradients in closed form assume that a module's input has the samples first and that its parameters are used
by its own forward and nowhere else. Models break that in many ways (sequence-first tokens, folded windows, tied
weights, attention that reads a Linear's weight directly), and most of them give wrong numbers, not errors. So the
probe compares the closed form with plain autograd, sample by sample, and what does not agree takes the general way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from avalanche_rewc.core import geometry
from avalanche_rewc.core.capture import Record, capture
from avalanche_rewc.core.copies import forward_with_copies, may_be_copied
from avalanche_rewc.core.gradients import closed_form, has_closed_form
from avalanche_rewc.core.selection import LayerChoice, select_layers

PROBE_SAMPLES = 3


def parameter_name(module_name: str, attribute: str = "weight") -> str:
    """As in `named_parameters()`; the model itself may be a layer, its name is empty then."""
    return f"{module_name}.{attribute}" if module_name else attribute


@dataclass(frozen=True)
class Entry:
    """One line of the summary: what is done to a parameter, and why."""

    parameter: str
    layer: str
    shape: tuple[int, ...]
    treatment: Literal["rotated", "diagonal", "frozen"]
    note: str = ""


@dataclass
class Plan:
    """Attributes:
    rotated: layers to rotate, by module name.
    watched: modules whose calls are recorded, by module name.
    closed: parameters whose Fisher comes from the records, as (module name, attribute) by parameter name.
    copied: parameters of which every sample is given a copy.
    general: parameters whose Fisher comes from `torch.func`.
    """

    rotated: dict[str, nn.Module] = field(default_factory=dict)
    watched: dict[str, nn.Module] = field(default_factory=dict)
    closed: dict[str, tuple[str, str]] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    general: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def closed_by_module(self) -> dict[str, dict[str, str]]:
        """Parameter names by module name and attribute."""
        grouped: dict[str, dict[str, str]] = {}
        for name, (module_name, attribute) in self.closed.items():
            grouped.setdefault(module_name, {})[attribute] = name
        return grouped


def make_plan(model: nn.Module, args: tuple[Any, ...], layers: LayerChoice) -> Plan:
    """Decide for every parameter of a model in eval mode.

    Args:
        args: of the model's forward; tensors have samples in the first dimension. A few samples are enough.
    """
    parameters = dict(model.named_parameters())
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    # Frozen layers too: "all_but_last" must know which one comes last.
    watched = {name: module for name, module in model.named_modules() if has_closed_form(module)}
    evidence = _probe(model, args, watched, {n: p for n, p in parameters.items() if p.requires_grad})
    called = [name for name in evidence.record.order if geometry.is_rotatable(watched[name])]
    selected = select_layers(model, layers, called)

    plan = Plan()
    home = {
        id(p): (name, attribute)
        for name, module in model.named_modules()
        for attribute, p in module._parameters.items()
        if p is not None
    }
    for name, parameter in parameters.items():
        module_name, attribute = home[id(parameter)]
        layer = type(model.get_submodule(module_name)).__name__
        treatment: Literal["rotated", "diagonal", "frozen"] = "diagonal"
        note = ""
        if not parameter.requires_grad:
            treatment = "frozen"
        else:
            tied = owners[id(parameter)] > 1
            known = not tied and module_name in watched
            agreement = evidence.agreement(name, module_name, attribute) if known else "none"
            if agreement == "samples":
                plan.closed[name] = (module_name, attribute)
            elif not tied and (reader := evidence.reader(name)):
                plan.closed[name] = reader
            else:
                plan.general.append(name)
            if attribute == "weight" and module_name in selected:
                treatment, note = _rotation_verdict(tied, agreement, evidence.unused(name))
                if treatment == "rotated":
                    plan.rotated[module_name] = selected[module_name]
            if not note and evidence.unused(name):
                note = "not used by this experience"
        plan.entries.append(Entry(name, layer, tuple(parameter.shape), treatment, note))
    plan.copied = _probe_copies(model, args, [n for n in plan.general if may_be_copied(parameters[n])], evidence)
    plan.general = [name for name in plan.general if name not in plan.copied]
    needed = {module_name for module_name, _ in plan.closed.values()} | set(plan.rotated)
    plan.watched = {name: module for name, module in watched.items() if name in needed}
    return plan


def _rotation_verdict(tied: bool, agreement: str, unused: bool) -> tuple[Literal["rotated", "diagonal"], str]:
    if tied:
        return "diagonal", "not rotated: its weight is tied to another module"
    if unused:
        return "diagonal", "not rotated: it has no part in the outputs of this experience"
    if agreement == "none":
        return "diagonal", "not rotated: its weight is not, or not only, used as the layer's own type uses it"
    return "rotated", ""


@dataclass
class _Evidence:
    """Fingerprints (samples, 2) of the gradient of each parameter, from the closed form and from autograd."""

    record: Record
    closed: Mapping[str, Mapping[str, Tensor]]
    reference: Mapping[str, Tensor]
    logits: Tensor
    signal: Tensor

    def unused(self, name: str) -> bool:
        return name not in self.reference

    def agreement(self, name: str, module_name: str, attribute: str) -> Literal["samples", "total", "none"]:
        """Whether closed form and autograd agree sample by sample, only in the sum over samples, or not at all."""
        ours, reference = self.closed.get(module_name, {}).get(attribute), self.reference.get(name)
        if reference is None or ours is None:
            return "samples" if reference is None and ours is None else "none"
        if ours.shape == reference.shape and (self._same(ours, reference) or not torch.isfinite(reference).all()):
            return "samples"  # what is not finite is found and named by the estimation
        return "total" if self._same(ours.sum(0), reference.sum(0)) else "none"

    def confirms(self, name: str, gradients: Tensor) -> bool:
        """Whether these are the parameter's gradients (B, *shape), sample by sample."""
        return name in self.reference and self._same(_fingerprint(gradients), self.reference[name])

    def reader(self, name: str) -> tuple[str, str] | None:
        """The module that reads this parameter of a part of its own, as attention does, if it is right about it."""
        for module_name, attributes in self.closed.items():
            for attribute in attributes:
                own = parameter_name(module_name, attribute) == name
                if own and self.agreement(name, module_name, attribute) == "samples":
                    return module_name, attribute
        return None

    def _same(self, ours: Tensor, reference: Tensor) -> bool:
        return _close(ours, reference, self.logits.dtype)


def _probe(
    model: nn.Module, args: tuple[Any, ...], watched: Mapping[str, nn.Module], parameters: Mapping[str, Tensor]
) -> _Evidence:
    _refuse_batch_statistics(model)
    _refuse_parameters(parameters)
    args = tuple(a[:PROBE_SAMPLES] if isinstance(a, Tensor) else a for a in args)
    with capture(watched) as record:
        logits = model(*args)
    _check_logits(logits)
    # Random signals: those of a saturated softmax would vanish and prove nothing.
    signal = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
    reference: dict[str, Tensor] = {}
    for i in range(len(logits)):
        alone = _alone(model, args, logits, i)
        single = torch.autograd.grad(alone, list(parameters.values()), signal[i : i + 1], allow_unused=True)
        for name, gradient in zip(parameters, single, strict=True):
            if gradient is not None:
                found = _fingerprint(gradient.unsqueeze(0))
                # Zeros for samples that have no use for it, where a gate lets only some of them through.
                reference.setdefault(name, found.new_zeros(len(logits), 2))[i] = found[0]

    gradients = record.output_gradients(logits, signal)
    closed: dict[str, dict[str, Tensor]] = {}
    for name in record.order:
        try:
            by_attribute = closed_form(watched[name], record.calls[name], gradients[name])
        except (RuntimeError, IndexError):
            continue  # a subclass or a use with other shapes than its base class has: the general way
        closed[name] = {attribute: _fingerprint(value) for attribute, value in by_attribute.items()}
    return _Evidence(record, closed, reference, logits, signal)


def _probe_copies(model: nn.Module, args: tuple[Any, ...], names: list[str], evidence: _Evidence) -> list[str]:
    """Those that every sample may have a copy of: the logits stay, and the copies' gradients are the samples' own."""
    args = tuple(a[:PROBE_SAMPLES] if isinstance(a, Tensor) else a for a in args)
    if len(evidence.logits) < 2:  # a copy for one sample proves nothing
        return []
    found = []
    for name in names:
        record = Record()
        try:
            logits = forward_with_copies(model, args, [name], record)
        except Exception:  # any of the model's own, where the copies are in its way
            continue
        if logits.shape != evidence.logits.shape or not _same_logits(logits, evidence.logits):
            continue
        [gradient] = record.output_gradients(logits, evidence.signal)[name]
        if gradient is not None and evidence.confirms(name, gradient.unsqueeze(1)):
            found.append(name)
    return found


def _fingerprint(gradients: Tensor) -> Tensor:
    """Two random linear functions `aᵀ G b` of every gradient (B, *shape): (B, 2).

    Different gradients have different ones, sums have sums, and the gradients themselves need not be kept.
    """
    gradients = geometry.promoted(gradients.to_dense())  # embeddings may have sparse ones
    matrices = gradients.reshape(*gradients.shape[:1], *(gradients.shape[1:2] or (1,)), -1)
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(2, matrices.shape[1], generator=generator).to(matrices)
    right = torch.randn(matrices.shape[2], 2, generator=generator).to(matrices)
    return ((matrices @ right) * left.mT).sum(1).double()


def _check_logits(logits: Any) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise RuntimeError(f"the model must return logits of shape (samples, classes) for the Fisher, not {found}")
    if not logits.requires_grad:
        raise RuntimeError("no parameter of the model requires a gradient: there is nothing to protect")
    check_finite(logits, "the first batch")


def check_finite(logits: Tensor, where: str) -> None:
    """Refuse logits that are NaN or +∞; −∞ is a masked class without probability."""
    if logits.isnan().any() or (logits == torch.inf).any():
        raise RuntimeError(
            f"the model's outputs are not finite on {where} of the Fisher estimation; the experience's training has "
            "diverged: lower the learning rate or ewc_lambda"
        )


def _same_logits(ours: Tensor, logits: Tensor, first: int = 0) -> bool:
    """Whether the rows from `first` on agree. Columns that are the same for every sample say nothing about that and are
    left out: the −1000 of a masked unit would set a scale on which any logits agree."""
    varies = (logits != logits[:1]).any(0)
    rows = logits[first : first + len(ours)]
    reference, ours = (values.detach()[:, varies].nan_to_num(neginf=0.0) for values in (rows, ours))
    return not varies.any() or _close(ours, reference, logits.dtype)


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise RuntimeError(
                f"module {name!r} ({type(module).__name__}) keeps no running statistics, so samples of a batch depend "
                "on each other in eval mode and have no gradient of their own. Use track_running_stats=True"
            )


def _alone(model: nn.Module, args: tuple[Any, ...], logits: Tensor, sample: int) -> Tensor:
    """The logits (1, C) of a sample alone. They must be those it has in company: its gradient is its own then."""
    try:
        alone: Tensor = model(*(a[sample : sample + 1] if isinstance(a, Tensor) else a for a in args))
    except Exception as error:
        raise RuntimeError(
            f"the model fails on a batch of one sample in eval mode ({error}): per-sample gradients need that. Look "
            "for a squeeze() without a dimension, or a batch size that is written down"
        ) from error
    if alone.shape == logits[:1].shape and _same_logits(alone, logits, sample):
        return alone
    if not _same_logits(model(*args), logits):
        raise RuntimeError(
            "the model answers at random in eval mode: per-sample gradients have no meaning. Look for dropout or noise "
            "that stays on, such as F.dropout(x) instead of F.dropout(x, training=self.training)"
        )
    raise RuntimeError(
        "the logits of a sample change with the other samples in its batch, in eval mode: per-sample gradients "
        "have no meaning. Look for batch statistics, or operations over the first dimension"
    )


def _refuse_parameters(parameters: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise RuntimeError(
                f"parameter {name} has no shape yet: run one batch through the model before you make the optimizer"
            )
        if parameter.numel() == 0:
            raise RuntimeError(
                f"parameter {name} of shape {tuple(parameter.shape)} has no elements, so nothing of it can be "
                "remembered: leave that module out, or freeze it"
            )
        if not parameter.is_floating_point():
            raise RuntimeError(
                f"parameter {name} is {parameter.dtype}: importances are for real numbers. Freeze it, or keep its real "
                "and imaginary part in a real parameter (torch.view_as_real)"
            )


def _close(ours: Tensor, reference: Tensor, precision: torch.dtype) -> bool:
    tolerance = 0.1 if precision in (torch.float16, torch.bfloat16) else 1e-3
    error = (ours.double() - reference.double()).abs().max()
    return bool(error <= tolerance * reference.double().abs().max() + 1e-12)
