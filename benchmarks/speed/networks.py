"""The networks that times are taken of, with random data of their shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from avalanche.models import IncrementalClassifier
from torch import Tensor, nn
from torchvision.models import VisionTransformer, resnet18

from avalanche_rewc.models import FeatureMLP, LeNet, VGG16GlobalPool


@dataclass(frozen=True)
class Network:
    """A network with the batch it is trained with. All its classes are there from the start."""

    title: str
    plain: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    classes: int
    batch_size: int

    def make(self) -> nn.Module:
        """The network, all of its outputs in use."""
        model = self.plain()
        for module in model.modules():
            if isinstance(module, IncrementalClassifier):
                module.active_units.fill_(1)
        return model

    def samples(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Random samples (count, *sample_shape), every class in turn as label."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(count, *self.sample_shape, generator=generator)
        return x, torch.arange(count) % self.classes


def _mlp(batch_size: int) -> Network:
    return Network(
        f"MLP 512-512-512, batch {batch_size}",
        lambda: FeatureMLP(512, (512, 512), initial_out_features=40),
        (512,),
        classes=40,
        batch_size=batch_size,
    )


NETWORKS: dict[str, Network] = {
    "lenet": Network("LeNet, batch 100", lambda: LeNet(10), (1, 32, 32), classes=10, batch_size=100),
    "mlp-32": _mlp(32),
    "mlp-128": _mlp(128),
    "vgg16": Network(
        "VGG-16 at 64 px, batch 16",
        lambda: VGG16GlobalPool(None, initial_out_features=40),
        (3, 64, 64),
        classes=40,
        batch_size=16,
    ),
    "resnet18": Network(
        "ResNet-18 at 32 px, batch 64", lambda: resnet18(num_classes=100), (3, 32, 32), classes=100, batch_size=64
    ),
    "vit": Network(
        "small ViT at 32 px, batch 64",
        lambda: VisionTransformer(32, 4, num_layers=6, num_heads=4, hidden_dim=192, mlp_dim=384, num_classes=100),
        (3, 32, 32),
        classes=100,
        batch_size=64,
    ),
}
