"""An incremental head whose new rows are drawn like its first ones."""

from __future__ import annotations

from typing import Any

import torch
from avalanche.models import IncrementalClassifier
from torch import Tensor, nn


def truncated_normal_(layer: nn.Module, std: float, rows: slice = slice(None)) -> None:
    """Fill a layer's weight with N(0, std²) cut off at ±2·std and its bias with 0, both in place.

    Args:
        layer: an `nn.Linear` or `nn.Conv2d`.
        std: standard deviation before the cut.
        rows: the outputs to fill; all by default.
    """
    weight, bias = layer.weight, layer.bias
    if not isinstance(weight, Tensor):
        raise TypeError(f"{type(layer).__name__} has no weight to initialise")
    with torch.no_grad():
        nn.init.trunc_normal_(weight[rows], 0.0, std, -2 * std, 2 * std)
        if isinstance(bias, Tensor):
            bias[rows] = 0.0


class TruncatedNormalClassifier(IncrementalClassifier):  # type: ignore[misc]
    """Avalanche's `IncrementalClassifier` with weights from N(0, std²) cut off at ±2·std and zero biases.

    Avalanche draws the rows of new classes as `nn.Linear` does, so the first task's classes would start from another
    distribution than the later ones. Input (B, in_features), output (B, classes so far).
    """

    def __init__(self, in_features: int, initial_out_features: int = 2, *, std: float = 0.1, **kwargs: Any) -> None:
        """See the class; `kwargs` go to `IncrementalClassifier`."""
        super().__init__(in_features, initial_out_features, **kwargs)
        self.std = std
        truncated_normal_(self.classifier, std)

    def adaptation(self, experience: Any) -> None:
        """Grow by the experience's new classes and initialise their rows; the old rows stay as they are."""
        old = self.classifier.out_features
        super().adaptation(experience)
        if self.classifier.out_features > old:
            truncated_normal_(self.classifier, self.std, slice(old, None))
