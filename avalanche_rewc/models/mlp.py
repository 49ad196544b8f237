"""Fully connected networks: on frozen VGG-16 features, and the small one of the Fisher figure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from avalanche.models import IncrementalClassifier
from torch import Tensor, nn


class FeatureMLP(nn.Module):
    """Fully connected layers on feature vectors: 512-256-256-C by default.

        (B, in_features) → fc hidden[0] → ReLU → fc hidden[1] → ReLU → … → head (B, C)

    With `hidden=(256, 256)` the paper's network on VGG-16 pool5 features of CIFAR-100; with `hidden=(512, 512)` the
    fully connected part of its CUB-200 and Stanford-40 network ("Training details"), for features of frozen
    convolutions. Inputs of any other shape are flattened first, so it also takes pictures.

    Args:
        in_features: numbers per input.
        hidden: widths of the hidden layers; empty for a linear classifier.
        initial_out_features: outputs of the head before the first experience; it grows with the classes.
    """

    def __init__(
        self, in_features: int = 512, hidden: Sequence[int] = (256, 256), *, initial_out_features: int = 2
    ) -> None:
        """See the class."""
        super().__init__()
        widths = [in_features, *hidden]
        if any(width < 1 for width in widths):
            raise ValueError(f"every width must be at least 1, not {widths}")
        layers: list[nn.Module] = []
        for d_in, d_out in pairwise(widths):
            layers += [nn.Linear(d_in, d_out), nn.ReLU()]
        self.body = nn.Sequential(nn.Flatten(), *layers)
        self.head = IncrementalClassifier(widths[-1], initial_out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) of inputs (B, in_features) or (B, …) with as many numbers."""
        logits: Tensor = self.head(self.body(x))
        return logits


class FisherMLP(FeatureMLP):
    """The network of the paper's figure of the Fisher matrix: layers of 784, 10, 10 and 10 neurons on MNIST.

        (B, 1, 28, 28) or (B, 784) → fc 10 → ReLU → fc 10 → ReLU → head (B, C)

    The figure shows the 100 × 100 Fisher matrix of the second layer's weights, `body[3]`.
    `DisjointMNIST(padding=0)` gives the 28×28 pictures.

    Args:
        initial_out_features: outputs of the head before the first experience; it grows with the classes.
    """

    def __init__(self, *, initial_out_features: int = 2) -> None:
        """See the class."""
        super().__init__(784, (10, 10), initial_out_features=initial_out_features)
