"""The paper's network for MNIST."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_rewc.models.head import TruncatedNormalClassifier, truncated_normal_


class LeNet(nn.Module):
    """LeNet of the paper's MNIST experiments ("Training details" and Table I): 6-16-120-84.

        (B, 1, 32, 32) → conv 5×5, 6 → ReLU → max-pool 2 → (B, 6, 14, 14)
                       → conv 5×5, 16 → ReLU → max-pool 2 → (B, 16, 5, 5)
                       → fc 120 → ReLU → fc 84 → ReLU → head (B, C)

    All weights, those of classes that come later included, are drawn from N(0, 0.1²) cut off at ±0.2; biases are zero.
    `DisjointMNIST` gives the 32×32 pictures.

    Args:
        initial_out_features: outputs of the head before the first experience; it grows with the classes.
        in_channels: channels of the input.
    """

    def __init__(self, initial_out_features: int = 2, *, in_channels: int = 1) -> None:
        """See the class."""
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        for layer in (self.conv1, self.conv2, self.fc1, self.fc2):
            truncated_normal_(layer, 0.1)
        self.head = TruncatedNormalClassifier(84, initial_out_features, std=0.1)

    def features(self, x: Tensor) -> Tensor:
        """The 84 numbers the head sees, for pictures (B, in_channels, 32, 32)."""
        if x.shape[-2:] != (32, 32):
            raise ValueError(
                f"LeNet takes 32×32 pictures, not {x.shape[-2]}×{x.shape[-1]}: pad them (DisjointMNIST does)"
            )
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(x.flatten(1)))
        x = self.relu(self.fc2(x))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, C) of pictures (B, in_channels, 32, 32)."""
        logits: Tensor = self.head(self.features(x))
        return logits
