"""Stanford-40: people in 40 everyday actions, whole frames."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from avalanche_rewc.streams.counts import NonCanonicalCounts, check_counts, require_counts
from avalanche_rewc.streams.download import Archive, fetch
from avalanche_rewc.streams.pictures import PictureDataset, PictureSet, cropped, require_pictures
from avalanche_rewc.streams.root import missing_files, resolve_data_root
from avalanche_rewc.streams.split import Source, SplitBenchmark, Transform, split
from avalanche_rewc.streams.tables import is_number, read_lines
from avalanche_rewc.streams.trust import stays_inside
from avalanche_rewc.streams.unpack import install

SITE = "http://vision.stanford.edu/Datasets"
ARCHIVES = [Archive(f"{SITE}/Stanford40_{part}.zip") for part in ("ImageSplits", "JPEGImages", "XMLAnnotations")]
"""No sizes or checksums are published: the unpacked set is counted instead."""
FOLDER = "Stanford40"
CANONICAL = {"training pictures": 4_000, "test pictures": 5_532, "classes": 40}
HOW = f"Pass download=True, or unpack the zip files of {SITE} into the folder {FOLDER} under the data root."


def SplitStanford40(
    n_experiences: int = 2,
    *,
    data_root: str | Path | None = None,
    size: int = 224,
    resize: int = 256,
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
    """Stanford-40 as the paper used it: frames resized to 256×256, of which 224×224 are cropped.

    The crop is random in training (drawn, as torchvision does, from torch's generator when a sample is loaded) and the
    central one in evaluation. Samples are (3, size, size) float32, normalised as ImageNet networks expect. Pictures are
    decoded when asked for.

    Args:
        n_experiences: T; must divide 40.
        data_root: the set is in `<data_root>/Stanford40`: the folders ImageSplits and JPEGImages as published. Files
            the split files do not name are ignored.
        size: of the samples, in pixels.
        resize: of the frame before the crop, in pixels.
        train_transform: applied to training pictures (PIL, RGB) instead of the above.
        eval_transform: the same for evaluation.
        canonical: False if the set is meant to differ from the published one: no warning about its counts.
        seed: see `split`, as all options from here on.
        class_order: see `split`; classes are numbered in alphabetical (ASCII) order.
        validation: see `split`.
        validation_seed: see `split`.
        task_labels: see `split`.
        download: fetch the set if it is missing.
    """
    if resize < size:
        raise ValueError(f"resize={resize} is smaller than the crop, size={size}")
    folder = resolve_data_root(data_root) / FOLDER
    if download and not folder.exists():
        packed = [fetch(archive, folder.parent / Path(archive.url).name) for archive in ARCHIVES]
        install(packed, folder, _check_whole)
    actions = read_stanford40(folder, canonical=canonical)
    check_counts(str(folder), actions.counts, CANONICAL, warn=canonical)
    return split(
        Source(
            "Stanford-40",
            actions.part(train=True),
            actions.part(train=False),
            actions.class_names,
            train_transform or cropped(resize, size, random=True),
            eval_transform or cropped(resize, size, random=False),
        ),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def read_stanford40(folder: Path, *, canonical: bool = True) -> PictureSet:
    """The set, class by class in alphabetical (ASCII) order, in each the training pictures first.

    Warns where `actions.txt` announces another number of pictures than an action's split files name, unless
    `canonical` is False.

    Raises:
        FileNotFoundError: split files or pictures are missing.
        ValueError: a split file is damaged, or a picture is named twice.
    """
    splits = folder / "ImageSplits"
    if not (splits / "actions.txt").is_file():
        raise missing_files("Stanford-40", [splits / "actions.txt"], HOW)
    announced = _read_actions(splits / "actions.txt")
    names = sorted(announced)
    lists = {(name, part): splits / f"{name}_{part}.txt" for name in names for part in ("train", "test")}
    if missing := [path for path in lists.values() if not path.is_file()]:
        raise missing_files("Stanford-40", missing, HOW)

    files: list[str] = []
    labels: list[int] = []
    train: list[bool] = []
    for (name, part), path in lists.items():
        listed = []
        for line, text in read_lines(path):
            if not text.startswith(f"{name}_"):
                raise ValueError(f"{path}, line {line}: {text!r} is not the name of a picture of {name}")
            listed.append(text)
        files += [f"JPEGImages/{file}" for file in listed]
        labels += [names.index(name)] * len(listed)
        train += [part == "train"] * len(listed)
    paths = require_pictures("Stanford-40", folder, files, HOW)
    if canonical:
        _compare_announced(splits, announced, [names[label] for label in labels])
    return PictureSet(PictureDataset(paths, torch.tensor(labels)), torch.tensor(train), files, names)


def _read_actions(path: Path) -> dict[str, int]:
    """Actions and their announced numbers of pictures; the first line is a header, columns are uneven tabs."""
    actions: dict[str, int] = {}
    for line, text in list(read_lines(path))[1:]:
        columns = text.split()
        if len(columns) != 2 or not is_number(columns[1]) or not is_action(columns[0]):
            raise ValueError(f"{path}, line {line}: {text!r} is not an action and a number")
        if columns[0] in actions:
            raise ValueError(f"{path}, line {line}: {columns[0]} comes twice")
        actions[columns[0]] = int(columns[1])
    if not actions:
        raise ValueError(f"{path} names no action")
    return actions


def is_action(name: str) -> bool:
    """Whether a name can be an action's, which is a part of files' names."""
    return stays_inside(name) and not set(name) & set("/\\")


def _compare_announced(splits: Path, announced: dict[str, int], listed: list[str]) -> None:
    wrong = [
        f"{name}: {listed.count(name)} listed, {number} announced"
        for name, number in announced.items()
        if listed.count(name) != number
    ]
    if wrong:
        warnings.warn(
            f"{splits}: the split files do not name as many pictures as actions.txt announces ({'; '.join(wrong[:3])})",
            NonCanonicalCounts,
            stacklevel=3,
        )


def _check_whole(folder: Path) -> None:
    require_counts("the unpacked Stanford-40", read_stanford40(folder).counts, CANONICAL)
