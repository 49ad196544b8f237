"""Streams over feature files: the paper's protocol for CIFAR-100, and frozen convolutions for the picture sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch

from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.feature_file import KINDS, FeatureFile, FeatureKind, load_features
from avalanche_rewc.streams.root import resolve_data_root
from avalanche_rewc.streams.split import Source, SplitBenchmark, split

FILE_NAMES = {
    "cifar100": "cifar100_vgg16_pool5.npz",
    "cub200": "cub200_vgg16_conv5max.npz",
    "stanford40": "stanford40_vgg16_conv5max.npz",
}
"""Where the features of each set are looked for, under `<data_root>/features`."""


def SplitFeatures(
    path: str | Path,
    n_experiences: int = 2,
    *,
    kind: FeatureKind | None = None,
    require_metadata: bool = False,
    canonical: bool = True,
    seed: int | None = None,
    class_order: Sequence[int] | None = None,
    validation: float = 0.0,
    validation_seed: int = 0,
    task_labels: bool = False,
) -> SplitBenchmark:
    """A stream over the rows of a feature file; samples are (D,) float32.

    Args:
        path: the file.
        n_experiences: T; must divide the number of classes.
        kind: what the file has to hold; see `load_features`, as the next two.
        require_metadata: refuse a file that does not say what made it.
        canonical: False: do not warn where it is not of the whole published set.
        seed: see `split`, as all options from here on.
        class_order: see `split`.
        validation: see `split`.
        validation_seed: see `split`.
        task_labels: see `split`.
    """
    content = load_features(path, kind, require_metadata=require_metadata, canonical=canonical)
    inputs, labels, train = content.features.to(torch.float32), content.labels, content.train
    return split(
        Source(
            Path(path).name,
            TensorClassificationDataset(inputs[train], labels[train]),
            TensorClassificationDataset(inputs[~train], labels[~train]),
            _class_names(content),
        ),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def SplitPaperFeatures(
    set_name: str,
    n_experiences: int = 2,
    *,
    data_root: str | Path | None = None,
    require_metadata: bool = False,
    canonical: bool = True,
    seed: int | None = None,
    class_order: Sequence[int] | None = None,
    validation: float = 0.0,
    validation_seed: int = 0,
    task_labels: bool = False,
) -> SplitBenchmark:
    """A stream over VGG-16 features of "cifar100", "cub200" or "stanford40", found under the data root.

    The files are `<data_root>/features/cifar100_vgg16_pool5.npz`, `…/cub200_vgg16_conv5max.npz` and
    `…/stanford40_vgg16_conv5max.npz`; one that is not of the set's kind (`KINDS`) is refused. Options as of
    `SplitFeatures`.
    """
    if set_name not in FILE_NAMES:
        raise ValueError(f"set_name={set_name!r} is not one of {', '.join(map(repr, FILE_NAMES))}")
    return SplitFeatures(
        resolve_data_root(data_root) / "features" / FILE_NAMES[set_name],
        n_experiences,
        kind=KINDS[set_name],
        require_metadata=require_metadata,
        canonical=canonical,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def _class_names(content: FeatureFile) -> list[str]:
    """From the metadata, else from the pictures' names as the two sets write them, else the numbers."""
    count = int(content.labels.max()) + 1
    names = [str(label) for label in range(count)]
    announced = content.metadata.get("class_names") if content.metadata is not None else None
    if isinstance(announced, list) and len(announced) == count:
        return [str(name) for name in announced]
    for label, file in zip(content.labels.tolist(), content.files or (), strict=False):
        picture = PurePosixPath(file)
        # CUB-200: images/001.Black_footed_Albatross/….jpg; Stanford-40: JPEGImages/applauding_177.jpg
        names[label] = picture.stem.rpartition("_")[0] if picture.parent.name == "JPEGImages" else picture.parent.name
    return names
