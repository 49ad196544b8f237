"""How a model came to its present shape, to give a new one the same: heads grow with what they meet."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from avalanche.core import SupervisedPlugin
from torch import nn


class Growth(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """Records what changed the shape of a strategy's model and optimizer; goes first among the plug-ins.

    `events`, oldest first: `["train", position]` for the experience at that position of the stream, or
    `["train", classes, task labels]` for another one; `["eval", classes, task labels]` for an evaluation that
    grew the model; `["trained"]` when an experience has been learned, which is when plug-ins copy the model.
    """

    def __init__(self, strategy: Any, stream: Sequence[Any]) -> None:
        """See the class."""
        super().__init__()
        self.stream = stream
        self.position = 0
        """Of the experience that is to be learned now."""
        self.events: list[list[Any]] = []
        self._shape = _shape(strategy.model)

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The model has been adapted to the experience, and the optimizer to the model."""
        described = _described(strategy.experience)
        here = self.position < len(self.stream) and described == _described(self.stream[self.position])
        self.events.append(["train", self.position] if here else ["train", *described])
        self._shape = _shape(strategy.model)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """All plug-ins come after this one."""
        self.events.append(["trained"])

    def before_eval_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The model has been adapted to the experience, behind the optimizer's back."""
        if _shape(strategy.model) != self._shape:
            self.events.append(["eval", *_described(strategy.experience)])
            self._shape = _shape(strategy.model)

    def replay(self, strategy: Any, events: list[list[Any]]) -> nn.Module:
        """Do to a new strategy what was done to the one that recorded the events.

        Returns:
            A copy of the model as it was when the last experience had been learned.
        """
        after_training: nn.Module = strategy.model
        trained = max((i for i, event in enumerate(events) if event[0] == "trained"), default=None)
        for i, (what, *which) in enumerate(events):
            if what == "trained":
                if i == trained:
                    after_training = copy.deepcopy(strategy.model)
                continue
            strategy.experience = self.stream[which[0]] if len(which) == 1 else _stand_in(*which)
            strategy.is_training = what == "train"
            strategy.model.train(what == "train")
            try:
                if what == "train":
                    strategy.check_model_and_optimizer()
                else:
                    strategy.model = strategy.model_adaptation()
            finally:
                strategy.experience, strategy.is_training = None, False
        self.events = events
        self._shape = _shape(strategy.model)
        return after_training


def _shape(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if hasattr(tensor, "shape")}


def _described(experience: Any) -> list[list[int]]:
    classes = sorted(int(label) for label in getattr(experience, "classes_in_this_experience", ()))
    return [classes, sorted({int(label) for label in getattr(experience, "task_labels", ())})]


def _stand_in(classes: list[int], task_labels: list[int]) -> Any:
    """All that Avalanche's growing modules ask of an experience."""
    return SimpleNamespace(classes_in_this_experience=classes, task_labels=task_labels)
