"""ImageNet weights of VGG-16's convolutions: torchvision's own, or a local file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models import VGG16_Weights

CONVOLUTIONS: tuple[tuple[int, int, int], ...] = (
    (0, 3, 64),
    (2, 64, 64),
    (5, 64, 128),
    (7, 128, 128),
    (10, 128, 256),
    (12, 256, 256),
    (14, 256, 256),
    (17, 256, 512),
    (19, 512, 512),
    (21, 512, 512),
    (24, 512, 512),
    (26, 512, 512),
    (28, 512, 512),
)
"""Position in torchvision's `vgg16().features`, input and output channels of the 13 convolutions, all 3×3."""

IMAGENET = "imagenet"


@dataclass(frozen=True)
class VGG16Weights:
    """The convolutions' parameters under torchvision's names (`features.0.weight`, …) and where they come from."""

    parameters: dict[str, Tensor]
    source: str
    """"torchvision IMAGENET1K_V1" or the file's name."""

    @property
    def sha256(self) -> str:
        """Of the parameters' float32 bytes in the order of the network: the same whatever file they came in."""
        digest = hashlib.sha256()
        for index, _, _ in CONVOLUTIONS:
            for kind in ("weight", "bias"):
                digest.update(self.parameters[f"features.{index}.{kind}"].numpy().tobytes())
        return digest.hexdigest()


def load_vgg16_weights(weights: str | Path) -> VGG16Weights:
    """Read VGG-16's convolution weights.

    Args:
        weights: `"imagenet"` for torchvision's IMAGENET1K_V1 (downloaded once to torch's cache), or a file: `.npz` of
            arrays, or a `state_dict` written by `torch.save`, with torchvision's names. A classifier part is ignored.
            Neither kind of file can execute code when read.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not readable as weights, or a tensor is missing, has another shape or is not finite.
    """
    if str(weights) == IMAGENET:
        state: Mapping[str, Any] = VGG16_Weights.IMAGENET1K_V1.get_state_dict(progress=True, check_hash=True)
        return VGG16Weights(_checked(state, "torchvision's weights"), "torchvision IMAGENET1K_V1")
    path = Path(weights)
    if not path.is_file():
        raise FileNotFoundError(
            f'{path}: no such file with VGG-16 weights. Give "imagenet" for torchvision\'s own, or a file written by '
            "torch.save(torchvision.models.vgg16(weights=...).state_dict(), file)"
        )
    return VGG16Weights(_checked(_read(path), str(path)), path.name)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes numpy and torch raise nearly anything
        raise ValueError(f"{path} cannot be read as weights ({error}). Expected .npz or a saved state_dict") from error
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds a {type(state).__name__}, not a state_dict")
    return state


def _checked(state: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = {}
    for index, d_in, d_out in CONVOLUTIONS:
        for kind, shape in (("weight", (d_out, d_in, 3, 3)), ("bias", (d_out,))):
            name = f"features.{index}.{kind}"
            value = state.get(name)
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"{source}: {name} is missing. Are these torchvision's VGG-16 weights (no batch norm)?"
                )
            if tuple(value.shape) != shape:
                raise ValueError(f"{source}: {name} has shape {tuple(value.shape)}, VGG-16 has {shape}")
            if not torch.isfinite(value).all():
                raise ValueError(f"{source}: {name} has values that are not finite")
            parameters[name] = value.detach().to(torch.float32).contiguous()
    return parameters
