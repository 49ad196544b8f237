"""ROTATE, train with the penalty, COMBINE: what happens to a model between two consolidations."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from avalanche_rewc.core.checks import number, one_of
from avalanche_rewc.core.memory import Memory, grow
from avalanche_rewc.core.optimizer import change_coordinates
from avalanche_rewc.core.penalty import QuadraticPenalty
from avalanche_rewc.core.plan import parameter_name
from avalanche_rewc.core.pulls import Term
from avalanche_rewc.core.reparametrize import merge_layer, rotate_layer
from avalanche_rewc.core.rotation import Rotation, way_between
from avalanche_rewc.core.wrappers import refuse_replicas, unwrapped

Space = Literal["rotated", "original"]


@dataclass
class _Layer:
    name: str
    module: nn.Module
    parameter: nn.Parameter
    rotation: Rotation
    rows: tuple[float, float]


class ProtectedTraining:
    """A model while it learns something new and must not forget what its memories hold.

    Entering changes coordinates (in `space="rotated"`); `penalty()` is added to every loss; `end()` merges the model.
    The basis of the newest memory is the one the optimizer walks in; penalties of older memories are taken in their
    own bases.

    Args:
        model: plain, its head already grown.
        memories: oldest first.
        optimizer: its state follows the parameters into the new coordinates and, in `end`, back.
        batch_size: of a training step; decides where the bases are applied (see `reparametrize`).
    """

    def __init__(
        self,
        model: nn.Module,
        memories: Sequence[Memory],
        ewc_lambda: float,
        *,
        space: Space = "rotated",
        optimizer: Optimizer | None = None,
        batch_size: int = 1,
    ) -> None:
        one_of("space", space, get_args(Space))
        number("ewc_lambda", ewc_lambda)
        if not memories:
            raise ValueError("memories: there is nothing to protect; train the first task without ProtectedTraining")
        if space == "rotated":
            refuse_replicas(model)
        model = unwrapped(model)
        self.model, self.optimizer = model, optimizer
        parameters = dict(model.named_parameters())
        # Everything that can fail is done before the first layer is touched.
        self.memories = [grow(memory, parameters) for memory in memories]
        trainable = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        _warn_of_lost(memories[-1], parameters)
        _warn_of_thawed(self.memories[-1], trainable)
        self.layers = _layers_to_rotate(model, self.memories[-1], trainable, batch_size) if space == "rotated" else []
        self._known: dict[str, Tensor] | None = None
        self._ended = False
        terms = self._terms(trainable)
        for layer in self.layers:
            rotate_layer(layer.module, layer.rotation, layer.rows)
            if optimizer is not None:
                change_coordinates(optimizer, layer.parameter, layer.rotation.to_rotated)
        self._penalty = QuadraticPenalty(ewc_lambda * self.memories[-1].scale, terms)

    def penalty(self) -> Tensor:
        """`λ/2 · Σ F (θ' − θ'*)²` with each memory's F scaled by its `scale`, to be added to the loss.

        Raises:
            RuntimeError: training is paused, or the model's parameters are no longer those that are protected.
        """
        if self._ended:
            raise RuntimeError("this training has ended; make a new ProtectedTraining for the next task")
        if self._known is not None:
            if self._replaced():
                raise RuntimeError(
                    "an evaluation in the middle of training met new classes and replaced the weights of a growing "
                    "head; the optimizer does not know the new ones and would train nothing. Evaluate that stream "
                    "before training starts (`eval_every` does), or make the head large enough from the start"
                )
            raise RuntimeError("training is paused: call resume() before the next step")
        return self._penalty()

    def _replaced(self) -> bool:
        present = {id(parameter) for parameter in self.model.parameters()}
        return any(id(parameter) not in present for parameter in self._penalty.parameters)

    def _terms(self, trainable: dict[str, nn.Parameter]) -> list[Term]:
        coordinates = {parameter_name(layer.name): layer.rotation for layer in self.layers}
        terms = []
        for memory in self.memories:
            relative = memory.scale / self.memories[-1].scale  # the newest one's scale is in λ
            for name, importance in memory.importances.items():
                if name in trainable:
                    importance = importance if relative == 1 else importance * relative
                    home, step = way_between(coordinates.get(name), memory.rotations.get(name))
                    terms.append(Term(trainable[name], importance, memory.anchors[name], step, home))
        return terms

    def pause(self) -> None:
        """Make the model plain for an evaluation in between. The optimizer must not step meanwhile."""
        if self._known is None:
            self._known = {layer.name: merge_layer(layer.module) for layer in self.layers}

    def resume(self) -> None:
        """Take up training again, with the very weights it was left with unless somebody has changed them since."""
        if self._known is None or self._ended or self._replaced():
            return  # the next penalty says what is wrong
        for layer in self.layers:
            known = self._known[layer.name]
            untouched = torch.equal(layer.rotation.to(known).to_original(known), layer.parameter)
            rotate_layer(layer.module, layer.rotation, layer.rows, known if untouched else None)
        self._known = None

    def end(self, optimizer: Optimizer | None = None) -> None:
        """COMBINE: plain weights, and the optimizer's state back in their coordinates.

        Args:
            optimizer: the one in use now, if it is not the one that training began with.
        """
        if self._ended:
            return
        self.pause()
        self._ended = True
        optimizer = optimizer or self.optimizer
        for layer in self.layers:
            if optimizer is not None:
                change_coordinates(optimizer, layer.parameter, layer.rotation.to_original)


def _layers_to_rotate(
    model: nn.Module, memory: Memory, trainable: dict[str, nn.Parameter], batch_size: int
) -> list[_Layer]:
    layers = []
    for name, rotation in memory.rotations.items():
        if name in trainable:
            module_name = name.removesuffix("weight").removesuffix(".")
            p_in, p_out = memory.positions[name]
            rows = (batch_size * p_in, batch_size * p_out)
            layers.append(_Layer(module_name, model.get_submodule(module_name), trainable[name], rotation, rows))
    return layers


def _warn_of_lost(memory: Memory, parameters: dict[str, nn.Parameter]) -> None:
    lost = [name for name in memory.importances if name not in parameters]
    if lost:
        warnings.warn(
            f"{', '.join(lost[:3])}{f' and {len(lost) - 3} more' if len(lost) > 3 else ''}: remembered, and not in the "
            "model any more, so nothing protects what they held. If they only got another name (a new wrapper, a "
            "parametrization), give the model its new form before the first experience",
            RuntimeWarning,
            stacklevel=3,
        )


def _warn_of_thawed(memory: Memory, trainable: dict[str, nn.Parameter]) -> None:
    frozen = [entry.parameter for entry in memory.entries if entry.treatment == "frozen"]
    thawed = [name for name in frozen if name in trainable]
    if thawed:
        warnings.warn(
            f"{', '.join(thawed)}: frozen when importances were estimated and trainable now, so nothing protects what "
            "earlier experiences need of them. Unfreeze before the experience ends, or keep them frozen",
            RuntimeWarning,
            stacklevel=3,
        )
