"""The loss behind the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.core import SupervisedPlugin
from torch import Tensor

from avalanche_rewc.core.checks import refuse_differences


class NewClassesBCE(SupervisedPlugin, supports_distributed=True):  # type: ignore[misc, call-arg]
    """Sigmoid cross-entropy over the logits of the classes that are new in this experience.

        loss = mean over samples and new classes of  −[y log σ(z) + (1 − y) log(1 − σ(z))]

    Old logits get no gradient from new data, so nothing but the drift of shared weights makes old classes forgotten.
    (Softmax cross-entropy over all classes seen pushes every old logit down in every step.) In evaluation the loss is
    over all classes seen so far. Pass it as `criterion` to any strategy: Avalanche treats a criterion that is a plug-in
    as both.

    Args:
        unseen: train the logits of classes not seen yet as well, as negatives, where the head already has them.
        reduction: "mean" over samples and classes, "sum" over classes and mean over samples.

    Classes are counted per task label, so multi-head models whose tasks reuse class numbers work. An experience that
    brings back old classes (a stream with repetition) counts only those never learned before as new; if none is new,
    its own classes are trained. Replayed samples of old classes are negatives for the new ones.
    """

    def __init__(self, *, unseen: bool = False, reduction: str = "mean") -> None:
        """See the class."""
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction={reduction!r} is not one of 'mean', 'sum'")
        self.unseen = unseen
        self.reduction = reduction
        self.seen: dict[int, set[int]] = {}
        """Classes learned or being learned, by task label."""
        self.new_classes: set[int] = set()
        self.training = False
        self._task = 0
        self._paused: tuple[bool, int] | None = None
        self._last: tuple[tuple[Any, ...], Tensor] | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch; logits (B, C), targets (B,)."""
        classes = self._active_on(logits)
        chosen = logits.index_select(1, classes)
        labels = (targets.unsqueeze(1) == classes).to(chosen)
        loss = F.binary_cross_entropy_with_logits(chosen, labels, reduction="none")
        return loss.mean() if self.reduction == "mean" else loss.sum(1).mean()

    def _active_on(self, logits: Tensor) -> Tensor:
        """The active classes as a tensor, made anew only when they may be others than in the last step."""
        mode = (self.training, self._task, logits.shape[1], logits.device, self.unseen)
        if self._last is None or self._last[0] != mode:
            self._last = mode, torch.tensor(self._active(logits.shape[1]), device=logits.device)
        return self._last[1]

    def _active(self, width: int) -> list[int]:
        everything = set(range(width))
        seen = self.seen.get(self._task, set())
        if not self.training:
            active = seen or everything
        elif self.unseen:
            active = everything - (seen - self.new_classes)
        else:
            active = self.new_classes
        if not active <= everything:
            raise RuntimeError(f"class {max(active)} has no logit: the model gives {width} outputs")
        return sorted(active)

    def learn(self, classes: Iterable[int], task: int = 0) -> None:
        """Start to train on these classes of a task; all others seen before are old."""
        classes = {int(c) for c in classes}
        seen = self.seen.setdefault(task, set())
        self.new_classes = classes - seen or classes
        seen |= classes
        self.training, self._task, self._last = True, task, None

    def state_dict(self) -> dict[str, Any]:
        """The classes seen, as plain data, to be stored between two experiences."""
        return {
            "options": self._options(),
            "seen": {task: sorted(classes) for task, classes in self.seen.items()},
            "new_classes": sorted(self.new_classes),
            "task": self._task,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state.

        Raises:
            ValueError: it was made with other options; the message says which.
        """
        refuse_differences("the state", self._options(), state["options"])
        self.seen = {task: set(classes) for task, classes in state["seen"].items()}
        self.new_classes = set(state["new_classes"])
        self.training, self._task, self._last = False, state["task"], None

    def _options(self) -> dict[str, Any]:
        return {"unseen": self.unseen, "reduction": self.reduction}

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The classes of the experience that were not learned before are the new ones."""
        self.learn(strategy.experience.classes_in_this_experience, _task_label(strategy.experience))

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Until the next experience every class seen counts."""
        self.training = False

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Evaluation may come in the middle of training."""
        self._paused = (self.training, self._task)
        self.training = False

    def before_eval_exp(self, strategy: Any, **kwargs: Any) -> None:
        """All classes seen of the task that is evaluated."""
        self._task = _task_label(strategy.experience)

    def after_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Back to where training was."""
        if self._paused is not None:
            self.training, self._task = self._paused
            self._paused = None


def _task_label(experience: Any) -> int:
    """The experience's task label; 0 where it has none, the smallest where it has several."""
    labels = getattr(experience, "task_labels", None)
    return min(labels) if labels else 0
