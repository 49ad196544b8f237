"""CUB-200-2011: birds, cropped to their boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from avalanche_rewc.streams.counts import check_counts, require_counts
from avalanche_rewc.streams.download import Archive, fetch
from avalanche_rewc.streams.pictures import Box, PictureDataset, PictureSet, require_pictures, resized
from avalanche_rewc.streams.root import missing_files, resolve_data_root
from avalanche_rewc.streams.split import Source, SplitBenchmark, Transform, split
from avalanche_rewc.streams.tables import read_numbered
from avalanche_rewc.streams.unpack import install

ARCHIVE = Archive(
    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    1_150_585_339,
    "97eceeb196236b17998738112f37df78",
)
FOLDER = "CUB_200_2011"
CANONICAL = {"training pictures": 5_994, "test pictures": 5_794, "classes": 200}
TABLES = {
    "images.txt": 1,
    "image_class_labels.txt": 1,
    "train_test_split.txt": 1,
    "bounding_boxes.txt": 4,
    "classes.txt": 1,
}
"""The set's tables and how many values follow the number of a row."""
HOW = f"Pass download=True, or unpack {ARCHIVE.url} (md5 {ARCHIVE.md5}) under the data root."


def SplitCUB200(
    n_experiences: int = 2,
    *,
    data_root: str | Path | None = None,
    size: int = 224,
    whole_pictures: bool = False,
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
    """CUB-200-2011 as the paper used it: box crops resized to 224×224 without keeping the aspect, no augmentation.

    Samples are (3, size, size) float32, normalised as ImageNet networks expect. Pictures are decoded when asked for.

    Args:
        n_experiences: T; must divide 200.
        data_root: the set is in `<data_root>/CUB_200_2011`, in its own layout. Files its tables do not name are
            ignored.
        size: of the samples, in pixels.
        whole_pictures: do not crop to the bird's box.
        train_transform: applied to training pictures (PIL, RGB, after the crop) instead of the above.
        eval_transform: the same for evaluation.
        canonical: False if the set is meant to differ from the published one: no warning about its counts.
        seed: see `split`, as all options from here on.
        class_order: see `split`.
        validation: see `split`.
        validation_seed: see `split`.
        task_labels: see `split`.
        download: fetch the set (1.1 GB) if it is missing.
    """
    folder = resolve_data_root(data_root) / FOLDER
    if download and not folder.exists():
        install([fetch(ARCHIVE, folder.parent / "CUB_200_2011.tgz")], folder, _check_whole)
    birds = read_cub200(folder, whole_pictures=whole_pictures)
    check_counts(str(folder), birds.counts, CANONICAL, warn=canonical)
    transform = resized(size)
    return split(
        Source(
            "CUB-200",
            birds.part(train=True),
            birds.part(train=False),
            birds.class_names,
            train_transform or transform,
            eval_transform or transform,
        ),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def read_cub200(folder: Path, *, whole_pictures: bool = False) -> PictureSet:
    """The set in the order of `images.txt`; labels from 0, as `classes.txt` numbers them from 1.

    Raises:
        FileNotFoundError: tables or pictures are missing.
        ValueError: a table is damaged, or the tables do not agree.
    """
    if missing := [folder / name for name in TABLES if not (folder / name).is_file()]:
        raise missing_files("CUB-200", missing, HOW)
    tables = {name: read_numbered(folder / name, columns) for name, columns in TABLES.items()}
    images = tables["images.txt"]
    if not images:
        raise ValueError(f"{folder / 'images.txt'} names no picture")
    for name in ("image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"):
        if wrong := sorted(tables[name].keys() ^ images.keys()):
            raise ValueError(f"{folder}: images.txt and {name} do not agree about picture {wrong[0]}")

    classes = sorted(tables["classes.txt"])
    class_names = [tables["classes.txt"][number][0] for number in classes]
    position = {str(number): label for label, number in enumerate(classes)}
    labels: list[int] = []
    train: list[bool] = []
    boxes: list[Box] = []
    for number, (file,) in images.items():
        (label,), (mark,) = tables["image_class_labels.txt"][number], tables["train_test_split.txt"][number]
        if label not in position:
            raise ValueError(
                f"{folder / 'image_class_labels.txt'}: picture {number} is of class {label}, not in classes.txt"
            )
        if mark not in ("0", "1"):
            raise ValueError(f"{folder / 'train_test_split.txt'}: picture {number} has {mark!r}, not 0 or 1")
        labels.append(position[label])
        if file.split("/")[0] != (name := class_names[position[label]]):
            raise ValueError(
                f"{folder}: images.txt has picture {number} in {file}, image_class_labels.txt and classes.txt say that "
                f"it is a {name}: a table is damaged, fetch the set again"
            )
        train.append(mark == "1")
        boxes.append(_box(tables["bounding_boxes.txt"][number], number, folder))

    files = [f"images/{name}" for (name,) in images.values()]
    paths = require_pictures("CUB-200", folder, files, HOW)
    return PictureSet(
        PictureDataset(paths, torch.tensor(labels), None if whole_pictures else boxes),
        torch.tensor(train),
        files,
        class_names,
    )


def _box(values: list[str], number: int, folder: Path) -> Box:
    try:
        x, y, width, height = map(float, values)
    except ValueError as error:
        raise ValueError(f"{folder / 'bounding_boxes.txt'}: picture {number} has the box {values}") from error
    if not all(map(math.isfinite, (x, y, width, height))) or width < 1 or height < 1:
        raise ValueError(f"{folder / 'bounding_boxes.txt'}: picture {number} has the box {values}, which holds nothing")
    return x, y, width, height


def _check_whole(folder: Path) -> None:
    require_counts("the unpacked CUB-200", read_cub200(folder).counts, CANONICAL)
