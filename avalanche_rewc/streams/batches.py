"""Whole batches by one index instead of sample by sample: the same batches, without a fetch for each sample.

Avalanche fetches every sample through layers of Python (about 30 µs each), which is more than a small network needs to
learn from it. Where samples lie in memory and never change, a batch can be one index into a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.benchmarks.utils.data_loader import MultiDatasetDataLoader
from avalanche.core import SupervisedPlugin
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from avalanche_rewc.streams.in_tensors import Fields, fields_in_tensors


class TensorBatches(SupervisedPlugin, supports_distributed=True):  # type: ignore[misc, call-arg]
    """Makes any strategy read its data by batch. Batches, and the random numbers drawn for them, stay the same.

    For streams whose samples are the same each time they are read: digits, MNIST, feature files. Every experience is
    read once, sample by sample where it does not lie in tensors already, and kept as tensors. With loader workers
    nothing is changed: they have their own way.

    Raises:
        ValueError: samples differ from one reading to the next (random transforms).
    """

    def __init__(self) -> None:
        super().__init__()
        self._evaluated: dict[tuple[str, int], tuple[Any, Fields]] = {}
        """What evaluation has read, and of which dataset: other streams may have the same name."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep: what was read is read again."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """The loader has just been made, and replayed samples are in it."""
        self._speed_up(strategy.dataloader)

    def before_eval_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Evaluation comes back to the same experiences again and again: they are kept."""
        experience = strategy.experience
        key = (experience.origin_stream.name, experience.current_experience)
        dataset, known = self._evaluated.get(key, (None, None))
        known = known if dataset is experience.dataset else None
        self._evaluated[key] = experience.dataset, self._speed_up(strategy.dataloader, known)[0]

    def _speed_up(self, loader: Any, known: Fields | None = None) -> list[Fields]:
        if not isinstance(loader, MultiDatasetDataLoader) or loader.loader_kwargs.get("num_workers"):
            return [known or ()]
        contents = [known] if known else [_read(dataset) for dataset in loader.datasets]

        def batched(datasets: Any, batch_sampler: Any) -> DataLoader[Any]:
            return DataLoader(_Batched(contents), batch_sampler=batch_sampler, collate_fn=_unchanged)

        loader._make_pytorch_loader = batched  # Avalanche's own samplers and their draws stay as they are
        return contents


class _Batched(Dataset[Any]):
    """The concatenation of several datasets; torch's loader asks `__getitems__` for a whole batch."""

    def __init__(self, contents: list[Fields]) -> None:
        self.fields = [
            torch.cat(columns) if len(columns) > 1 else columns[0] for columns in zip(*contents, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.fields[0])

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        chosen = torch.tensor(indices)
        return [field[chosen] for field in self.fields]


def _unchanged(batch: list[Tensor]) -> list[Tensor]:
    return batch


def _read(dataset: Any) -> Fields:
    if len(dataset) and not all(_same(dataset[i], dataset[i]) for i in (0, len(dataset) - 1)):
        raise ValueError(
            "TensorBatches: a sample is not the same when it is read again; this stream has random transforms. Leave "
            "the plug-in out for it"
        )
    return fields_in_tensors(dataset) or tuple(dataset.collate_fn([dataset[i] for i in range(len(dataset))]))


def _same(first: Any, second: Any) -> bool:
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(first, second, strict=True))
