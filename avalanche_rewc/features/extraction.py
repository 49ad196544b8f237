"""The extraction itself: batches through VGG-16 into a feature file, going on where an earlier run stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

import avalanche_rewc
from avalanche_rewc.features.extractor import FeatureExtractor
from avalanche_rewc.features.sets import FeatureInputs
from avalanche_rewc.streams.feature_file import FORMAT


def extract(
    inputs: FeatureInputs,
    extractor: FeatureExtractor,
    out: str | Path,
    *,
    batch_size: int = 32,
    device: str | torch.device = "cpu",
    num_workers: int = 0,
    restart: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Path:
    """Compute the features of all rows and write them, as float16 with metadata, to a feature file.

    Finished batches are appended to `<out>.partial`, described by `<out>.partial.json`; a run that finds them goes on
    after the last whole row. `out` appears by one rename when everything is done, and the side files go.

    Args:
        inputs: the set, from `open_set`.
        extractor: for the same kind of features.
        out: the `.npz` to write.
        batch_size: pictures per step.
        device: where the network runs: "cpu", "cuda", "cuda:1", "mps", …
        num_workers: processes that decode pictures.
        restart: throw away what an interrupted run left.
        overwrite: replace `out` if it exists.
        progress: show a bar with the time left.

    Raises:
        FileExistsError: `out` exists.
        ValueError: the kinds differ, an interrupted run with other pictures or weights lies there, or a feature is not
            finite in float16.
        OSError: a picture cannot be decoded; what was done before it is kept.
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise ValueError(f"{out}: a feature file's name ends in .npz")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists: give another name, or overwrite it (--overwrite)")
    if extractor.kind != inputs.kind:
        raise ValueError(f"the extractor is made for {extractor.kind.set}, the pictures are of {inputs.kind.set}")
    out.parent.mkdir(parents=True, exist_ok=True)
    metadata = _metadata(inputs, extractor)
    partial = _Partial(out, metadata, inputs.kind.width)
    done = partial.begin(restart)
    extractor.to(device)
    loader = DataLoader(inputs.rows(done), batch_size=batch_size, num_workers=num_workers)
    bar = tqdm(
        total=len(inputs.labels),
        initial=done,
        desc=inputs.kind.set,
        unit="picture",
        disable=not progress,
        smoothing=0.1,
    )
    with bar:
        for batch in loader:
            features = extractor(batch.to(device)).cpu().numpy().astype(np.float16)
            if not np.isfinite(features).all():
                raise ValueError("a feature is not finite in float16: are these ImageNet weights?")
            partial.append(features)
            bar.update(len(features))
    _save(out, inputs, partial.read(), metadata)
    partial.remove()
    return out


def _metadata(inputs: FeatureInputs, extractor: FeatureExtractor) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **inputs.kind.identity,
        "network": "VGG-16",
        "weights": extractor.weights_name,
        "weights_sha256": extractor.weights_sha256,
        "pictures_sha256": inputs.fingerprint,
        "train": int(inputs.train.sum()),
        "test": int((~inputs.train).sum()),
        "class_names": inputs.class_names,
        "made_by": f"avalanche-rewc {avalanche_rewc.__version__}",
    }


def _save(out: Path, inputs: FeatureInputs, features: np.ndarray[Any, Any], metadata: dict[str, Any]) -> None:
    arrays: dict[str, Any] = {
        "features": features,
        "labels": inputs.labels.numpy().astype(np.int16),
        "train": inputs.train.numpy(),
        "metadata": np.array(json.dumps(metadata)),
    }
    if inputs.files is not None:
        arrays["files"] = np.array(inputs.files)
    unfinished = out.with_name(f".{out.name}.tmp")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
    os.replace(unfinished, out)


class _Partial:
    """Rows of a run that has not finished: raw float16 in one file, what run it is in another."""

    def __init__(self, out: Path, metadata: dict[str, Any], width: int) -> None:
        self.rows = out.with_name(out.name + ".partial")
        self.run = out.with_name(out.name + ".partial.json")
        self.metadata = metadata
        self.width = width

    def begin(self, restart: bool) -> int:
        """The number of rows already there; a row cut off in the middle is dropped."""
        if restart:
            self.remove()
        if not self.run.is_file():
            self.rows.unlink(missing_ok=True)  # rows of a run nobody can name
            unfinished = self.run.with_name(self.run.name + ".tmp")
            unfinished.write_text(json.dumps(self.metadata))
            os.replace(unfinished, self.run)
            return 0
        earlier = json.loads(self.run.read_text())
        differing = [key for key in self.metadata if earlier.get(key) != self.metadata[key]]
        if differing:
            raise ValueError(
                f"{self.rows} was left by a run with another {', '.join(differing)}: finish that one, or throw it away "
                "(--restart)"
            )
        row_bytes = 2 * self.width
        done = self.rows.stat().st_size // row_bytes if self.rows.is_file() else 0
        if done:
            os.truncate(self.rows, done * row_bytes)
        return done

    def append(self, features: np.ndarray[Any, Any]) -> None:
        """Add rows (n, width), float16; they are on disk when this returns."""
        with self.rows.open("ab") as file:
            file.write(features.tobytes())

    def read(self) -> np.ndarray[Any, Any]:
        """All rows so far, (N, width)."""
        return np.fromfile(self.rows, np.float16).reshape(-1, self.width)

    def remove(self) -> None:
        self.rows.unlink(missing_ok=True)
        self.run.unlink(missing_ok=True)
