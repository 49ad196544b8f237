"""The samples an experience's Fisher is estimated from: drawn per class, in batches of one task."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from avalanche_rewc.core.capture import evaluation_mode
from avalanche_rewc.core.consolidate import Batch

CACHE_BYTES = 256 * 2**20
"""Batches are kept between the two passes of an estimation up to this size, so that files are decoded once."""


def check_experience(experience: Any, samples_per_class: int | None, fisher: str) -> None:
    """Refuse an experience whose Fisher could not be estimated, before it is trained on."""
    name = f"experience {getattr(experience, 'current_experience', '?')}"
    size = len(experience.dataset)
    if size < 2:
        raise ValueError(
            f"{name} has {size} sample(s): R-EWC cannot estimate a Fisher matrix from fewer than two. "
            "Give it more data, or train on it together with another experience"
        )
    if samples_per_class is not None or fisher == "empirical":
        option = "samples_per_class" if samples_per_class is not None else 'fisher="empirical"'
        if len(getattr(experience.dataset, "targets", ())) != size:
            raise ValueError(
                f"{name}: its dataset has no labels (`targets`), which {option} needs. Make it with "
                "`as_classification_dataset` or `as_taskaware_classification_dataset`, or pass samples_per_class=None "
                'and fisher="sampled" or "exact"'
            )


def draw_samples(dataset: Any, samples_per_class: int | None, generator: torch.Generator) -> list[int]:
    """Indices of up to `samples_per_class` samples of every class, without replacement; None: all of them."""
    if samples_per_class is None:
        return list(range(len(dataset)))
    by_class: dict[int, list[int]] = defaultdict(list)
    for index, label in enumerate(dataset.targets):
        by_class[int(label)].append(index)
    chosen: list[int] = []
    for label in sorted(by_class):
        indices = by_class[label]
        chosen += [indices[i] for i in torch.randperm(len(indices), generator=generator)[:samples_per_class].tolist()]
    return chosen


class ExperienceBatches:
    """The drawn samples of an experience as batches for `consolidate`; calling it starts a pass over them.

    Evaluation transforms are used, since estimation runs in eval mode. Every batch has one task label, which a
    multi-task model gets as a number: it then answers with that head's own outputs only.
    """

    def __init__(
        self,
        model: nn.Module,
        experience: Any,
        samples_per_class: int | None,
        *,
        generator: torch.Generator,
        batch_size: int,
        device: torch.device | str,
        num_workers: int = 0,
    ) -> None:
        self.dataset = experience.dataset.eval()
        self.task_aware = is_multi_task_module(model) and hasattr(experience, "task_labels")
        self.batch_size, self.device, self.num_workers = batch_size, device, num_workers
        chosen = draw_samples(self.dataset, samples_per_class, generator)
        self.by_task = self._group(chosen)
        self.takes_number = self.task_aware and self._takes_number(model)
        self._cache: list[Batch] | None = None

    def _group(self, chosen: Sequence[int]) -> dict[int, list[int]]:
        if not self.task_aware:
            return {0: list(chosen)}
        tasks = self.dataset.targets_task_labels
        groups: dict[int, list[int]] = defaultdict(list)
        for index in chosen:
            groups[int(tasks[index])].append(index)
        return dict(groups)

    def _takes_number(self, model: nn.Module) -> bool:
        """Whether the model takes a task label as a number, as Avalanche's heads do; others want a tensor."""
        task, indices = next(iter(self.by_task.items()))
        x = next(iter(self._loader(indices[:1])))[0].to(self.device)
        try:
            with torch.no_grad(), evaluation_mode(model):
                model(x, task)
        except Exception:
            return False
        return True

    def _arguments(self, x: Tensor, task: int) -> tuple[Any, ...]:
        if not self.task_aware:
            return (x,)
        return (x, task) if self.takes_number else (x, torch.full((len(x),), task, device=x.device))

    def __call__(self) -> Iterator[Batch]:
        if self._cache is not None:
            yield from self._cache
            return
        seen: list[Batch] = []
        size = 0
        for task, indices in self.by_task.items():
            for mbatch in self._loader(indices):
                x, y = mbatch[0].to(self.device), mbatch[1]
                labels = y.to(self.device) if isinstance(y, Tensor) and y.dim() == 1 else None
                batch: Batch = (self._arguments(x, task), labels)
                size += x.numel() * x.element_size()
                if size <= CACHE_BYTES:
                    seen.append(batch)
                yield batch
        if size <= CACHE_BYTES:
            self._cache = seen

    def _loader(self, indices: list[int]) -> DataLoader[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # more workers than cores is the caller's choice
            return DataLoader(
                Subset(self.dataset, indices),
                batch_size=self.batch_size,
                collate_fn=getattr(self.dataset, "collate_fn", None),
                num_workers=self.num_workers,
                generator=torch.Generator(),  # a DataLoader draws a seed for its workers even if it needs none
            )
