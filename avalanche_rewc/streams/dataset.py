"""Labelled data that can be cut into experiences."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset


class LabelledData(Protocol):
    """What a stream is cut from: something with labels whose samples can be picked and relabelled."""

    @property
    def targets(self) -> Tensor:
        """Labels (N,), int64."""

    def pick(self, indices: Tensor, targets: Tensor) -> Dataset[Any]:
        """The samples at `indices` (n,), with new labels `targets` (n,)."""


class TensorClassificationDataset(Dataset[tuple[Tensor, int]]):
    """Samples and labels that lie ready in memory; getting one is an index.

    Avalanche wraps a dataset in layers that cost far more per sample than a small network does. Whoever wants whole
    batches takes `inputs[indices]` and `targets[indices]` directly.

    Args:
        inputs: (N, …), the first axis counts samples.
        targets: (N,) labels.
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        """See the class."""
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs but {len(targets)} targets")
        self.inputs = inputs
        self.targets = targets.to(torch.int64)
        self._labels: list[int] = self.targets.tolist()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One sample, a view of `inputs`, and its label."""
        return self.inputs[index], self._labels[index]

    def pick(self, indices: Tensor, targets: Tensor) -> TensorClassificationDataset:
        """The samples at `indices`, copied, with new labels."""
        return TensorClassificationDataset(self.inputs[indices], targets)
