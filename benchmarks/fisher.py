"""What a result file keeps of the Fisher: the size of the importances, and for the paper's Fig. FIM the whole matrix of
a small layer before and after rotation."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avalanche_rewc.diagnostics import diagonal_share, experience_batches, fisher_matrix
from benchmarks.config import RunConfig
from benchmarks.names import UserError, unknown

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def fisher_record(strategy: Any, experience: Any, config: RunConfig) -> dict[str, Any]:
    """Matrices and the share of their energy on the diagonal, for the run's own rotation."""
    layer = f"{config.fisher_layer}.weight"
    plugin = getattr(strategy, "rewc", None)
    if plugin is None:
        raise UserError(f"fisher_layer needs a method that rotates, such as 'rewc-exact', not {config.method!r}")
    rotations = plugin.memories[-1].rotations
    if layer not in rotations:
        raise unknown("rotated layer", layer.removesuffix(".weight"), [n.removesuffix(".weight") for n in rotations])
    batches = experience_batches(
        strategy.model, experience, config.options["samples_per_class"], batch_size=config.batch_size, seed=config.seed
    )
    before, after = (
        fisher_matrix(strategy.model, batches, layer, rotation, seed=config.seed)
        for rotation in (None, rotations[layer])
    )
    return {
        "layer": config.fisher_layer,
        "before": pack(before),
        "after": pack(after),
        "kept_before": diagonal_share(before),
        "kept_after": diagonal_share(after),
    }


def importance_record(strategy: Any) -> dict[str, float] | None:
    """How large the importances are that the last task left: what the scale of λ depends on. None without R-EWC."""
    plugin = getattr(strategy, "rewc", None)
    if plugin is None:
        return None
    values = torch.cat([value.flatten().double() for value in plugin.memories[-1].importances.values()])
    return {
        "sum": float(values.sum()),
        "count": float(values.numel()),
        "max": float(values.max()),
        "squares": float(values.square().sum()),
    }


def pack(matrix: Tensor) -> dict[str, Any]:
    """A matrix as text: magnitudes relative to the largest, in half precision, compressed."""
    top = float(matrix.abs().max()) or 1.0
    values = (matrix / top).to(torch.float16).cpu().numpy()
    return {
        "shape": list(values.shape),
        "top": top,
        "data": base64.b64encode(zlib.compress(values.tobytes(), 9)).decode(),
    }


def unpack(packed: dict[str, Any]) -> Matrix:
    """The inverse of `pack`, up to half precision."""
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.float16)
    matrix: Matrix = values.reshape(packed["shape"]).astype(np.float64) * packed["top"]
    return matrix
