"""CIFAR-100's pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_rewc.streams.counts import check_counts, require_counts
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.download import Archive, fetch
from avalanche_rewc.streams.pickled_arrays import read_pickle
from avalanche_rewc.streams.root import missing_files, resolve_data_root
from avalanche_rewc.streams.split import Source, SplitBenchmark, Transform, split
from avalanche_rewc.streams.unpack import install

ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"
)
FOLDER = "cifar-100-python"
CANONICAL = {"training pictures": 50_000, "test pictures": 10_000}
MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
"""Of the training pixels in [0, 1], per channel; Avalanche's `SplitCIFAR100` uses the same."""


class Normalise:
    """Bytes (C, H, W) to float32 (x / 255 − mean) / std, per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """See the class."""
        self.offset = torch.tensor(mean).view(-1, 1, 1)
        self.scale = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, picture: Tensor) -> Tensor:
        """One picture, or a batch (B, C, H, W)."""
        return (picture.to(torch.float32) / 255 - self.offset) / self.scale


def SplitCIFAR100(
    n_experiences: int = 2,
    *,
    data_root: str | Path | None = None,
    train_transform: Transform | None = None,
    eval_transform: Transform | None = None,
    canonical: bool = True,
    seed: int | None = None,
    class_order: Sequence[int] | None = None,
    validation: float = 0.0,
    validation_seed: int = 0,
    task_labels: bool = False,
    download: bool = False,
) -> SplitBenchmark:
    """CIFAR-100's pixels as a stream of classes: (3, 32, 32) float32, normalised per channel, no augmentation.

    The stream of Avalanche's `SplitCIFAR100`, without its random crops and flips, since the paper augments nothing.
    The paper itself trains on features: see `SplitPaperFeatures("cifar100")`.

    Args:
        n_experiences: T; must divide 100.
        data_root: the set is in `<data_root>/cifar-100-python`, as torchvision lays it out.
        train_transform: applied to training pictures, uint8 (3, 32, 32), instead of `Normalise(MEAN, STD)`.
        eval_transform: the same for evaluation.
        canonical: False if the set is meant to differ from the published one: no warning about its counts.
        seed: see `split`, as all options from here on.
        class_order: see `split`.
        validation: see `split`.
        validation_seed: see `split`.
        task_labels: see `split`.
        download: fetch the set if it is missing.
    """
    folder = resolve_data_root(data_root) / FOLDER
    train, test, class_names = read_cifar100(folder, download=download)
    check_counts(str(folder), _counts(train, test), CANONICAL, warn=canonical)
    normalise = Normalise(MEAN, STD)
    return split(
        Source("CIFAR-100", train, test, class_names, train_transform or normalise, eval_transform or normalise),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def read_cifar100(
    folder: Path, *, download: bool = False
) -> tuple[TensorClassificationDataset, TensorClassificationDataset, list[str]]:
    """Training data, test data (uint8, (N, 3, 32, 32), the set's own order) and the names of the classes."""
    missing = [folder / name for name in ("train", "test", "meta") if not (folder / name).is_file()]
    if missing and download:
        packed = fetch(ARCHIVE, folder.parent / "cifar-100-python.tar.gz")
        install([packed], folder, _check_whole)
    elif missing:
        raise missing_files("CIFAR-100", missing, f"Pass download=True, or unpack {ARCHIVE.url} to {folder.parent}.")
    names = _unpickle(folder / "meta").get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise ValueError(f"{folder / 'meta'} does not name 100 classes: remove {folder} and fetch the set again")
    return _read_part(folder, "train"), _read_part(folder, "test"), [str(name) for name in names]


def _check_whole(folder: Path) -> None:
    train, test, _ = read_cifar100(folder)
    require_counts("the unpacked CIFAR-100", _counts(train, test), CANONICAL)


def _counts(train: TensorClassificationDataset, test: TensorClassificationDataset) -> dict[str, int]:
    return {"training pictures": len(train), "test pictures": len(test)}


def _read_part(folder: Path, part: str) -> TensorClassificationDataset:
    content = _unpickle(folder / part)
    pixels, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not isinstance(labels, list):
        raise ValueError(f"{folder / part} has no pixels or no labels: remove {folder} and fetch the set again")
    if pixels.shape != (len(labels), 3072):
        raise ValueError(
            f"{folder / part} has pixels of shape {pixels.shape} and {len(labels)} labels, expected "
            f"({len(labels)}, 3072): remove {folder} and fetch the set again"
        )
    if not all(isinstance(label, int) and 0 <= label < 100 for label in labels):
        raise ValueError(f"{folder / part} has labels that are not 0 to 99: remove {folder} and fetch the set again")
    return TensorClassificationDataset(torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.tensor(labels))


def _unpickle(path: Path) -> dict[str, Any]:
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds a {type(content).__name__}, not a data set: remove {path.parent} and fetch again"
        )
    return content
