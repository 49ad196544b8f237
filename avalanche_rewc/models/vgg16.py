"""VGG-16's convolutions: as a feature extractor's body, and the paper's network for the two picture sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avalanche.models import IncrementalClassifier
from torch import Tensor, nn

from avalanche_rewc.models.weights import CONVOLUTIONS, VGG16Weights, load_vgg16_weights


def vgg16_convolutions(weights: VGG16Weights | str | Path | None) -> nn.Sequential:
    """conv1_1 … conv5_3 of VGG-16, each followed by a ReLU, without pool5.

    Shapes: (B, 3, H, W) → (B, 512, H/16, W/16); H and W at least 16. Modules are at torchvision's positions 0 … 29.

    Args:
        weights: "imagenet", a file (see `load_vgg16_weights`), weights already loaded, or None for a random start (He
            initialisation).
    """
    layers: list[nn.Module] = []
    for index, d_in, d_out in CONVOLUTIONS:
        if index > len(layers):  # torchvision's numbering leaves the places of the max-pools free
            layers.append(nn.MaxPool2d(2, 2))
        conv = nn.Conv2d(d_in, d_out, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        layers += [conv, nn.ReLU()]
    body = nn.Sequential(*layers)
    if weights is not None:
        loaded = weights if isinstance(weights, VGG16Weights) else load_vgg16_weights(weights)
        body.load_state_dict({name.removeprefix("features."): value for name, value in loaded.parameters.items()})
    return body


class VGG16GlobalPool(nn.Module):
    """The paper's network for CUB-200 and Stanford-40 ("Training details").

        (B, 3, 224, 224) → VGG-16 convolutions to conv5_3 → ReLU → (B, 512, 14, 14) → global max pool → (B, 512)
                         → fc 512 → ReLU → fc 512 → ReLU → head (B, C)

    The paper says "global pooling"; its numbers come from **max** pooling. Any picture size from 16×16 up works.

    Args:
        weights: "imagenet" for torchvision's IMAGENET1K_V1, a local file (see `load_vgg16_weights`), or None for a
            random start of the convolutions.
        hidden: widths of the two fully connected layers.
        initial_out_features: outputs of the head before the first experience; it grows with the classes.
    """

    def __init__(
        self,
        weights: str | Path | None = "imagenet",
        *,
        hidden: tuple[int, int] = (512, 512),
        initial_out_features: int = 2,
    ) -> None:
        """See the class."""
        super().__init__()
        self.convolutions = vgg16_convolutions(weights)
        self.fc = nn.Sequential(nn.Linear(512, hidden[0]), nn.ReLU(), nn.Linear(hidden[0], hidden[1]), nn.ReLU())
        self.head = IncrementalClassifier(hidden[1], initial_out_features)

    def features(self, x: Tensor) -> Tensor:
        """Globally max-pooled conv5_3, (B, 512), of pictures (B, 3, H, W)."""
        maps: Tensor = self.convolutions(x)
        return maps.amax((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) of pictures (B, 3, H, W)."""
        logits: Tensor = self.head(self.fc(self.features(x)))
        return logits

    def parameter_groups(self, *, lr: float = 1e-3, convolutions_lr: float = 1e-5) -> list[dict[str, Any]]:
        """Two groups for an optimizer: the pretrained convolutions, and the fully connected part with the head.

        The convolutions are fine-tuned at 1e-5, everything else is trained at 1e-3:

            optimizer = torch.optim.Adam(model.parameter_groups(), weight_decay=1e-5)

        Avalanche puts parameters of a grown head into the group of the head they replace, here the second one.
        """
        return [
            {"params": list(self.convolutions.parameters()), "lr": convolutions_lr},
            {"params": [*self.fc.parameters(), *self.head.parameters()], "lr": lr},
        ]
