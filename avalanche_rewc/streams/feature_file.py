"""Feature files: what is in them, and when one is refused.

A feature file is an `.npz` without pickles, in one of two layouts:

    features (N, D), labels (N,), train (N,) bool, files (N,) text         rows in the order of the set
    train_features, train_labels, test_features, test_labels               as above, training rows first

`metadata`, a JSON text, says which set, weights, layer, pooling and preprocessing made it. The command
`python -m avalanche_rewc.features` always writes it. Files from elsewhere may lack it: they are accepted if their
numbers of rows, columns and classes are those of the set they are read as, unless `require_metadata` is given.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_rewc.streams.counts import check_counts
from avalanche_rewc.streams.trust import unpacked_limit
from avalanche_rewc.streams.unpack import require_all_members

FORMAT = 1
MAX_LABEL = 1_000_000


@dataclass(frozen=True)
class FeatureKind:
    """What the features of a set have to be. All texts are compared with a file's metadata, word by word."""

    set: str
    layer: str
    pooling: str
    preprocessing: str
    classes: int
    train: int
    test: int
    width: int = 512

    @property
    def identity(self) -> dict[str, str]:
        """The part of the metadata that has to match."""
        return {key: value for key, value in asdict(self).items() if isinstance(value, str)}


_NORMALISED = "RGB in [0, 1], mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)"

KINDS: dict[str, FeatureKind] = {
    kind.set: kind
    for kind in (
        FeatureKind("cifar100", "pool5", "2×2 max of the layer itself", f"32×32, {_NORMALISED}", 100, 50_000, 10_000),
        FeatureKind(
            "cub200",
            "conv5_3 after ReLU",
            "global max",
            f"box crop, 224×224 bilinear without keeping the aspect, {_NORMALISED}",
            200,
            5_994,
            5_794,
        ),
        FeatureKind(
            "stanford40",
            "conv5_3 after ReLU",
            "global max",
            f"256×256 bilinear without keeping the aspect, centre crop 224×224, {_NORMALISED}",
            40,
            4_000,
            5_532,
        ),
    )
}
"""The paper's protocol for each set."""


@dataclass(frozen=True)
class FeatureFile:
    """The content of a feature file."""

    features: Tensor
    """(N, D), as stored (float16 or float32)."""
    labels: Tensor
    """(N,) int64."""
    train: Tensor
    """(N,) bool: training row or test row."""
    files: tuple[str, ...] | None
    """Names of the pictures, where the file has them."""
    metadata: Mapping[str, Any] | None
    """What made it, where the file says so."""


def load_features(
    path: str | Path,
    kind: FeatureKind | None = None,
    *,
    require_metadata: bool = False,
    weights_sha256: str | None = None,
    canonical: bool = True,
) -> FeatureFile:
    """Read a feature file and refuse one that is damaged or is not of the kind asked for.

    Args:
        path: the `.npz`.
        kind: what it has to be, such as `KINDS["cub200"]`; None: anything.
        require_metadata: refuse a file that does not say what made it.
        weights_sha256: refuse a file made by other weights (see `VGG16Weights.sha256`); needs metadata.
        canonical: False if the file is meant to be of a smaller or larger set than the published one: no warning.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, not a feature file, or does not match.
    """
    path = Path(path)
    arrays = _read(path)
    metadata = _metadata(arrays, path)
    content = _content(arrays, metadata, path)
    if metadata is None and (require_metadata or weights_sha256 is not None):
        raise ValueError(f"{path} does not say what made it (no metadata): extract the features again")
    if weights_sha256 is not None and metadata is not None and metadata.get("weights_sha256") != weights_sha256:
        raise ValueError(
            f"{path} was made by weights {metadata.get('weights')} ({metadata.get('weights_sha256')}), not by those "
            f"with sha256 {weights_sha256}"
        )
    if kind is not None:
        _match(content, kind, path, canonical)
    return content


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such feature file. Make it with `python -m avalanche_rewc.features extract --help`"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            require_all_members(archive)
            size = sum(member.file_size for member in archive.infolist())
        if size > unpacked_limit(path):
            raise ValueError(f"its {path.stat().st_size:,} bytes claim to be {size:,} when they are unpacked")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{path} cannot be read as a feature file ({error})") from error


def _metadata(arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> dict[str, Any] | None:
    if "metadata" not in arrays:
        return None
    try:
        metadata = json.loads(str(arrays["metadata"]))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: its metadata cannot be read ({error})") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: its metadata is not of format {FORMAT}; it needs another version of this library")
    return metadata


def _content(arrays: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, Any] | None, path: Path) -> FeatureFile:
    if {"features", "labels", "train"} <= arrays.keys():
        features, labels, train = (_tensor(arrays, name, path) for name in ("features", "labels", "train"))
    elif (
        names := {f"{part}_{what}" for part in ("train", "test") for what in ("features", "labels")}
    ) <= arrays.keys():
        parts = {name: _tensor(arrays, name, path) for name in names}
        if len({parts[f"{part}_features"].shape[1:] for part in ("train", "test")}) > 1:
            raise ValueError(f"{path}: training and test features are not of one width")
        features = torch.cat([parts["train_features"], parts["test_features"]])
        labels = torch.cat([parts["train_labels"], parts["test_labels"]])
        train = torch.arange(len(labels)) < len(parts["train_labels"])
    else:
        raise ValueError(f"{path} is not a feature file: it has {sorted(arrays)}")
    if features.dim() != 2 or not features.is_floating_point():
        raise ValueError(f"{path}: features are {features.dtype} of shape {tuple(features.shape)}, not numbers (N, D)")
    if train.dtype != torch.bool or not len(features) == len(labels) == len(train):
        raise ValueError(f"{path}: {len(features)} features, {len(labels)} labels and {len(train)} marks do not agree")
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) == 0:
        raise ValueError(f"{path}: labels are {labels.dtype} of shape {tuple(labels.shape)}, not whole numbers (N,)")
    if int(labels.min()) < 0 or int(labels.max()) > MAX_LABEL:
        raise ValueError(f"{path}: labels go from {int(labels.min())} to {int(labels.max())}, not up from 0")
    if not torch.isfinite(features).all():
        raise ValueError(f"{path} has features that are not finite: it is damaged")
    files = tuple(map(str, arrays["files"].reshape(-1).tolist())) if "files" in arrays else None
    if files is not None and len(files) != len(features):
        raise ValueError(f"{path}: {len(features)} features but {len(files)} names of files")
    return FeatureFile(features, labels.to(torch.int64), train, files, metadata)


def _tensor(arrays: Mapping[str, np.ndarray[Any, Any]], name: str, path: Path) -> Tensor:
    array = arrays[name]
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise ValueError(f"{path}: {name} is {array.dtype} of shape {array.shape}, not numbers")
    return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


def _match(content: FeatureFile, kind: FeatureKind, path: Path, canonical: bool) -> None:
    if content.features.shape[1] != kind.width:
        raise ValueError(
            f"{path}: {content.features.shape[1]} numbers per sample, {kind.set} features have {kind.width}"
        )
    found = {
        "training rows": int(content.train.sum()),
        "test rows": int((~content.train).sum()),
        "classes": len(torch.unique(content.labels)),
    }
    published = {"training rows": kind.train, "test rows": kind.test, "classes": kind.classes}
    if content.metadata is None:
        if found != published:
            raise ValueError(f"{path} has no metadata and {found}, {kind.set} has {published}: it is not of that set")
        return
    for key, expected in kind.identity.items():
        if content.metadata.get(key) != expected:
            raise ValueError(f"{path}: its {key} is {content.metadata.get(key)!r}, asked for {expected!r}")
    check_counts(str(path), found, published, warn=canonical, stacklevel=5)
