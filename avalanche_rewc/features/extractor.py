"""VGG-16's convolutions with the pooling of a feature kind."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from avalanche_rewc.models.vgg16 import vgg16_convolutions
from avalanche_rewc.models.weights import load_vgg16_weights
from avalanche_rewc.streams.feature_file import FeatureKind


class FeatureExtractor(nn.Module):
    """Frozen VGG-16 to the 512 numbers that a `FeatureKind` describes.

        "pool5":               (B, 3, 32, 32) → conv5_3 → ReLU → 2×2 max pool → (B, 512, 1, 1) → (B, 512)
        "conv5_3 after ReLU":  (B, 3, H, W)   → conv5_3 → ReLU → max over all positions → (B, 512)

    Args:
        kind: what to compute.
        weights: "imagenet" for torchvision's own, or a local file; see `load_vgg16_weights`.
    """

    def __init__(self, kind: FeatureKind, weights: str | Path = "imagenet") -> None:
        """See the class."""
        super().__init__()
        if kind.layer not in ("pool5", "conv5_3 after ReLU"):
            raise ValueError(f"layer {kind.layer!r} is not one of 'pool5', 'conv5_3 after ReLU'")
        self.kind = kind
        loaded = load_vgg16_weights(weights)
        self.weights_name, self.weights_sha256 = loaded.source, loaded.sha256
        self.convolutions = vgg16_convolutions(loaded)
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Features (B, 512) of normalised pictures (B, 3, H, W)."""
        maps: Tensor = self.convolutions(x)
        if self.kind.layer == "conv5_3 after ReLU":
            return maps.amax((2, 3))
        if x.shape[-2:] != (32, 32):
            raise ValueError(f"pool5 gives 512 numbers for 32×32 pictures only, not for {x.shape[-2]}×{x.shape[-1]}")
        return nn.functional.max_pool2d(maps, 2).flatten(1)
