"""Small models of every kind the library promises to handle, with inputs for them. All in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rotated: set[str]
    """Names of the layers that `layers="all"` rotates."""
    integers: bool = False
    tolerance: float = 1e-8
    """Relative. torch's layer norm itself differs by 1e-8 between a batch and one sample, in float64 too."""

    def model(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.make().double().eval()

    def inputs(self, samples: int = 7, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.integers:
            return torch.randint(0, 11, (samples, *self.shape), generator=generator)
        return torch.randn(samples, *self.shape, dtype=torch.float64, generator=generator)


def mlp() -> nn.Module:
    hidden = nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 7, bias=False), nn.Tanh()
    return nn.Sequential(*hidden, nn.Linear(7, 4))


class Convs(nn.Module):
    """One convolution of a kind, then a head over the mean of its map."""

    def __init__(self, layer: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv, self.head = layer, nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu_(self.conv(x)).flatten(2).mean(-1))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.layer, self.rms = nn.LayerNorm([4, 4]), nn.RMSNorm(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(16, 3)
        self.batch.running_mean, self.batch.running_var = torch.randn(4), torch.rand(4) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.group(F.relu(self.batch(self.conv(x))))
        return self.head(self.drop((self.rms(self.layer(x) + x) * x).mean(1).flatten(1)))


class Attention(nn.Module):
    """A small ViT block: class token, positions, Linear qkv, LayerNorm, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 4, 8))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1) + self.position
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        return self.head(x[:, 0])


class TorchAttention(nn.Module):
    """torch's own attention reads `out_proj.weight` without calling `out_proj`; tokens come sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x.transpose(0, 1)).mean(0))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])


class Shared(nn.Module):
    """One layer under two names, called three times, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.idle, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(F.relu_(self.first(torch.tanh(self.first(x)))))))


class Tied(nn.Module):
    """Embedding and head share a weight; a Linear's weight is also used by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.embed(x))).mean(1)
        return self.head(x + x @ self.middle.weight)


class Windows(nn.Module):
    """Folds tokens into the batch dimension, as window attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        folded = torch.tanh(self.inner(x.flatten(0, 1)))
        return self.head(folded.unflatten(0, x.shape[:2]).sum(1))


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


def frozen() -> nn.Module:
    model = mlp()
    model[0].weight.requires_grad_(False)
    return model


def conv_case(layer: Callable[[], nn.Module], shape: tuple[int, ...]) -> Case:
    return Case(lambda: Convs(layer(), layer().out_channels), shape, {"conv", "head"})


CASES = {
    "mlp": Case(mlp, (6,), {"0", "2", "4"}),
    "conv1d": conv_case(lambda: nn.Conv1d(2, 4, 3, stride=2, padding=2, dilation=2), (2, 9)),
    "conv2d-reflect": conv_case(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 5, 6)),
    "conv2d-circular": conv_case(
        lambda: nn.Conv2d(3, 4, (2, 3), padding=(1, 2), padding_mode="circular", bias=False), (3, 5, 4)
    ),
    "conv2d-same": conv_case(lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (2, 6, 7)),
    "conv2d-valid": conv_case(lambda: nn.Conv2d(2, 3, 3, padding="valid", stride=(2, 1)), (2, 7, 6)),
    "conv2d-groups": conv_case(lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    "conv2d-depthwise": conv_case(lambda: nn.Conv2d(3, 6, 3, groups=3), (3, 5, 5)),
    "conv3d": conv_case(lambda: nn.Conv3d(2, 3, (2, 3, 2), padding=1, stride=(1, 2, 1)), (2, 3, 5, 4)),
    "norms": Case(Norms, (2, 4, 4), {"conv", "head"}, tolerance=1e-5),
    "tokens": Case(Attention, (3, 5), {"embed", "qkv", "out", "head"}, tolerance=1e-5),
    "torch-attention": Case(TorchAttention, (4, 8), {"block.linear1", "block.linear2", "head"}, tolerance=1e-5),
    "lstm": Case(lambda: Recurrent(nn.LSTM), (5, 4), {"head"}),
    "gru": Case(lambda: Recurrent(nn.GRU), (5, 4), {"head"}),
    "shared": Case(Shared, (6,), {"first", "head"}),
    "tied": Case(Tied, (3,), set(), integers=True),
    "windows": Case(Windows, (4, 4), {"inner", "head"}),
    "weight-norm": Case(WeightNormed, (6,), {"head"}),
    "frozen": Case(frozen, (6,), {"2", "4"}),
}
