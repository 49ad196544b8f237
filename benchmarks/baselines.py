"""Small parts that a fair comparison needs and Avalanche does not have."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.core import SupervisedPlugin
from avalanche.models import IncrementalClassifier
from torch import nn

from avalanche_rewc.losses import NewClassesBCE


class SeenClassesBCE(NewClassesBCE):
    """Sigmoid cross-entropy over every class in the data being trained on: `NewClassesBCE` for the upper bounds.

    Joint and cumulative training see old classes again, which `NewClassesBCE` would only use as negatives.
    """

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """All classes of the data, that of earlier tasks included, are trained."""
        classes = {int(label) for label in strategy.adapted_dataset.targets}
        self.learn(classes)
        self.new_classes = classes


class SigmoidDistillation(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """Learning without Forgetting for a sigmoid loss: old logits keep the probabilities the last model gave them.

        α · mean over samples, sum over old classes of  BCE(σ(z), σ(z_before))

    Avalanche's LwF distils a softmax over the old logits, which leaves their common offset free; under a sigmoid loss,
    where logits of old and new classes are compared directly, that offset is what gets lost.
    """

    def __init__(self, alpha: float) -> None:
        """See the class."""
        super().__init__()
        self.alpha = alpha
        self.teacher: nn.Module | None = None
        self.old_classes: list[int] = []

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the distillation loss; the first task has none."""
        if self.teacher is None:
            return
        with torch.no_grad():
            before = self.teacher(strategy.mb_x)[:, self.old_classes].sigmoid()
        now = strategy.mb_output[:, self.old_classes]
        loss = F.binary_cross_entropy_with_logits(now, before, reduction="none").sum(1).mean()
        strategy.loss += self.alpha * loss

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The model as it is now teaches the next one."""
        self.teacher = copy.deepcopy(strategy.model).eval().requires_grad_(False)
        classes = set(self.old_classes) | {int(c) for c in strategy.experience.classes_in_this_experience}
        self.old_classes = sorted(classes)


class TrainNewOutputsOnly(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """After the first task nothing but the outputs of new classes is trained: no forgetting by drift, no new features.

    The limit of every penalty as λ grows. What a method gains over it, it gains by still learning. Old outputs are put
    back after each step: the optimizer's weight decay would move them even without a gradient.
    """

    def __init__(self) -> None:
        """See the class."""
        super().__init__()
        self.old: dict[nn.Parameter, torch.Tensor] = {}

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Freeze; the head has grown by now."""
        if strategy.clock.train_exp_counter == 0:
            return
        heads = [module for module in strategy.model.modules() if isinstance(module, IncrementalClassifier)]
        new = len(strategy.experience.classes_in_this_experience)
        strategy.model.requires_grad_(False)
        for head in heads:
            head.requires_grad_(True)
        self.old = {p: p.detach()[:-new].clone() for head in heads for p in head.parameters()}

    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        """Put the old outputs back."""
        with torch.no_grad():
            for parameter, old in self.old.items():
                parameter[: len(old)] = old


class DropLearningRate(SupervisedPlugin, supports_distributed=True):  # type: ignore[misc, call-arg]
    """Divide every learning rate by `factor` from epoch `epoch` of each task on, and start the next task anew."""

    def __init__(self, epoch: int, factor: float) -> None:
        """See the class."""
        super().__init__()
        self.epoch, self.factor = epoch, factor
        self._start: list[float] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        """Set the learning rates of this epoch."""
        groups = strategy.optimizer.param_groups
        self._start = self._start or [group["lr"] for group in groups]
        divisor = self.factor if strategy.clock.train_exp_epochs >= self.epoch else 1.0
        for group, start in zip(groups, self._start, strict=True):
            group["lr"] = start / divisor
