"""MNIST, padded to 32×32, as the paper's disjoint tasks."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from avalanche_rewc.streams.counts import check_counts
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.download import Archive, fetch
from avalanche_rewc.streams.root import missing_files, resolve_data_root
from avalanche_rewc.streams.split import Source, SplitBenchmark, split
from avalanche_rewc.streams.trust import unpacked_limit

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
ARCHIVES = {
    name: Archive(f"{MIRROR}/{name}.gz", size, md5)
    for name, size, md5 in (
        ("train-images-idx3-ubyte", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
}
CANONICAL = {"training pictures": 60_000, "test pictures": 10_000}
UNSIGNED_BYTE = 0x08


def DisjointMNIST(
    n_experiences: int = 2,
    *,
    data_root: str | Path | None = None,
    padding: int = 2,
    canonical: bool = True,
    seed: int | None = None,
    class_order: Sequence[int] | None = None,
    validation: float = 0.0,
    validation_seed: int = 0,
    task_labels: bool = False,
    download: bool = False,
) -> SplitBenchmark:
    """The paper's disjoint MNIST: digits 0-4, then 5-9, on pictures of 32×32; any number of experiences.

    Avalanche's `SplitMNIST` with the classes in natural order, except that the pictures are padded, lie ready as
    float32 (1, 32, 32) in [0, 1], and are not normalised: `LeNet` is trained on them as they are.

    Args:
        n_experiences: T; 2 in the paper's Table I.
        data_root: the files are in `<data_root>/MNIST/raw`, as torchvision lays them out, packed (.gz) or not.
        padding: zeros on every side: 2 for the paper's 32×32, 0 for 28×28.
        canonical: False if the set is meant to differ from the published one: no warning about its counts.
        seed: see `split`, as all options from here on.
        class_order: see `split`.
        validation: see `split`.
        validation_seed: see `split`.
        task_labels: see `split`.
        download: fetch the files that are missing.
    """
    if padding < 0:
        raise ValueError(f"padding={padding} is negative")
    raw = resolve_data_root(data_root) / "MNIST" / "raw"
    _require(raw, download=download)
    train, test = _read_part(raw, "train", padding), _read_part(raw, "t10k", padding)
    check_counts(str(raw), {"training pictures": len(train), "test pictures": len(test)}, CANONICAL, warn=canonical)
    return split(
        Source(
            "MNIST",
            train,
            test,
            [str(digit) for digit in range(10)],
        ),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )


def _require(raw: Path, *, download: bool) -> None:
    missing = [name for name in ARCHIVES if not (raw / name).is_file() and not (raw / f"{name}.gz").is_file()]
    if missing and download:
        for name in missing:
            fetch(ARCHIVES[name], raw / f"{name}.gz")
    elif missing:
        raise missing_files(
            "MNIST",
            [raw / f"{name}.gz" for name in missing],
            f"Pass download=True, or put the four files of {MIRROR} there.",
        )


def _read_part(raw: Path, part: str, padding: int) -> TensorClassificationDataset:
    pictures = read_idx(_find(raw, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find(raw, f"{part}-labels-idx1-ubyte"))
    if pictures.shape[1:] != (28, 28) or labels.shape != pictures.shape[:1]:
        raise ValueError(
            f"MNIST in {raw}: {part} has pictures of shape {tuple(pictures.shape)} and labels of shape "
            f"{tuple(labels.shape)}, which do not go together. Remove the files and fetch them again"
        )
    if len(labels) and int(labels.max()) > 9:
        raise ValueError(
            f"MNIST in {raw}: {part} has the label {int(labels.max())}. Remove the files and fetch them again"
        )
    size = 28 + 2 * padding
    inputs = torch.zeros(len(pictures), 1, size, size)
    inputs[:, 0, padding : padding + 28, padding : padding + 28] = pictures
    return TensorClassificationDataset(inputs.div_(255), labels)


def _find(raw: Path, name: str) -> Path:
    plain = raw / name
    return plain if plain.is_file() else raw / f"{name}.gz"


def read_idx(path: Path) -> Tensor:
    """Read an idx file of unsigned bytes, packed with gzip or not.

    The format: two zero bytes, the type (8 for unsigned bytes), the number of axes, their lengths as big-endian 32-bit
    numbers, then the values.
    """
    limit = unpacked_limit(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(limit + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}): remove it and fetch it again") from error
    if len(content) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes when it is unpacked: remove it and fetch it again")
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if content[:3] != bytes((0, 0, UNSIGNED_BYTE)) or len(content) < start:
        raise ValueError(f"{path} is not an idx file of unsigned bytes: remove it and fetch it again")
    shape = tuple(np.frombuffer(content, ">u4", axes, 4).tolist())
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path} has {len(content) - start} values, its header says {shape}: remove it and fetch it again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())
