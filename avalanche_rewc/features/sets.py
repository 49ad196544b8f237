"""The picture sets as an extractor sees them: rows in the set's own order, preprocessed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_rewc.streams import cifar100, cub200, stanford40
from avalanche_rewc.streams.counts import check_counts
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.feature_file import KINDS, FeatureKind
from avalanche_rewc.streams.pictures import IMAGENET_MEAN, IMAGENET_STD, PictureSet, Transform, cropped, resized
from avalanche_rewc.streams.root import resolve_data_root


class Preprocessed(Dataset[Tensor]):
    """The inputs of a labelled dataset after a transform, from one row on."""

    def __init__(self, dataset: Any, transform: Transform, first: int = 0) -> None:
        """See the class."""
        self.dataset, self.transform, self.first = dataset, transform, first

    def __len__(self) -> int:
        """Rows from `first` on."""
        return len(self.dataset) - self.first

    def __getitem__(self, index: int) -> Tensor:
        """A picture, (3, H, W), normalised."""
        sample: Tensor = self.transform(self.dataset[self.first + index][0])
        return sample


@dataclass(frozen=True)
class FeatureInputs:
    """All rows of a set, ready for the extractor."""

    kind: FeatureKind
    dataset: Any
    """Rows of (picture, label)."""
    transform: Transform
    """The kind's preprocessing of one picture."""
    labels: Tensor
    train: Tensor
    files: list[str] | None
    class_names: list[str]
    fingerprint: str
    """Changes with the names and sizes of the pictures; a run is continued only on the same ones."""

    def rows(self, first: int = 0) -> Preprocessed:
        """Preprocessed pictures from row `first` on."""
        return Preprocessed(self.dataset, self.transform, first)


def open_set(name: str, data_root: str | Path | None = None, *, canonical: bool = True) -> FeatureInputs:
    """Read the set "cifar100", "cub200" or "stanford40" from where its stream reads it.

    Args:
        name: of the set.
        data_root: see `resolve_data_root`.
        canonical: False: do not warn where counts are not the published ones.
    """
    root = resolve_data_root(data_root)
    if name == "cifar100":
        return _cifar100(root / cifar100.FOLDER, canonical)
    if name == "cub200":
        birds = cub200.read_cub200(root / cub200.FOLDER)
        check_counts(str(root / cub200.FOLDER), birds.counts, cub200.CANONICAL, warn=canonical)
        return _pictures(name, birds, resized(224))
    if name == "stanford40":
        actions = stanford40.read_stanford40(root / stanford40.FOLDER, canonical=canonical)
        check_counts(str(root / stanford40.FOLDER), actions.counts, stanford40.CANONICAL, warn=canonical)
        return _pictures(name, actions, cropped(256, 224, random=False))
    raise ValueError(f"set {name!r} is not one of {', '.join(map(repr, KINDS))}")


def _cifar100(folder: Path, canonical: bool) -> FeatureInputs:
    train, test, class_names = cifar100.read_cifar100(folder)
    counts = {"training pictures": len(train), "test pictures": len(test)}
    check_counts(str(folder), counts, cifar100.CANONICAL, warn=canonical)
    pixels = torch.cat([train.inputs, test.inputs])
    labels = torch.cat([train.targets, test.targets])
    return FeatureInputs(
        KINDS["cifar100"],
        TensorClassificationDataset(pixels, labels),
        cifar100.Normalise(IMAGENET_MEAN, IMAGENET_STD),
        labels,
        torch.arange(len(labels)) < len(train),
        None,
        class_names,
        hashlib.sha256(pixels.numpy().tobytes()).hexdigest(),
    )


def _pictures(name: str, pictures: PictureSet, transform: Transform) -> FeatureInputs:
    digest = hashlib.sha256()
    for file, path in zip(pictures.files, pictures.pictures.paths, strict=True):
        digest.update(f"{file}\t{path.stat().st_size}\n".encode())
    return FeatureInputs(
        KINDS[name],
        pictures.pictures,
        transform,
        pictures.pictures.targets,
        pictures.train,
        pictures.files,
        pictures.class_names,
        digest.hexdigest(),
    )
