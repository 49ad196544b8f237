"""Random architectures: recipes drawn by hypothesis, and the models they make.

A recipe is plain data (so that a failing one can be read, and shrunk): what kind of input, which pieces in which order,
which of them are frozen. `build` makes the model; the same recipe makes the same model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import example, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.tally import SOAK

WIDTH = 4
INPUTS = {
    "vector": (WIDTH,),
    "tokens": (3, WIDTH),
    "signal": (WIDTH, 6),
    "picture": (WIDTH, 4, 5),
    "volume": (WIDTH, 2, 3, 3),
}
CONVOLVED = {"signal": 1, "picture": 2, "volume": 3}


@dataclass(frozen=True)
class Recipe:
    kind: str
    pieces: tuple[Any, ...]
    frozen: frozenset[int] = frozenset()
    """Indices of pieces whose parameters do not train."""
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return INPUTS[self.kind]

    def inputs(self, samples: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randn(samples, *self.shape, generator=generator, dtype=torch.float64).to(dtype)

    def named(self, piece: str) -> bool:
        """Whether a piece of that name is anywhere in it."""
        return piece in repr(self.pieces)


DRESSES = ["", "weight_norm", "spectral_norm", "parametrized bias"]
VECTOR_PIECES = ["layer norm", "rms norm", "dropout", "tied", "scale"]
TOKEN_PIECES = ["attention", "attention first", "encoder", "lstm", "gru", "rnn first", "folded"]
MAP_PIECES = ["batch norm", "group norm", "dropout", "scale"]


RANDOM = 8
"""Random recipes beside those of `everything`, in the ordinary run."""


def everything(mixed: bool = True) -> list[Recipe]:
    """Recipes that together have every piece for every kind of input: random ones may leave some out for long."""
    found = []
    for kind in INPUTS:
        if kind in CONVOLVED:
            layers: list[Any] = [
                ("conv", 1, 3, 2, "zeros", True, ""),
                ("conv", 2, 2, 1, "circular", False, "weight_norm"),
                ("conv", 4, 3, 1, "zeros", True, "spectral_norm"),
                ("conv", 4, 2, 2, "circular", True, "parametrized bias"),
                ("conv", 1, 3, 1, "zeros", False, "channels last"),
            ]
            names = MAP_PIECES
        else:
            layers = [("linear", True, dress) for dress in DRESSES]
            names = [*VECTOR_PIECES, *(TOKEN_PIECES if kind == "tokens" else ["batch norm"])]
        wrapped = [(how, layers[0]) for how in ("residual", "shared", *(["double"] if mixed else []))]
        pieces = [*layers, *names, *wrapped]
        rounds = -(-len(pieces) // 4)
        for i in range(rounds):  # each takes some of all sorts
            found.append(Recipe(kind, tuple(pieces[i::rounds]), frozenset({0} if i == 0 else ()), i))
    return found


def with_everything(*more: Any, mixed: bool = True) -> Any:
    """A decorator that adds those recipes to the examples of a property; `more` are its other arguments, in turn."""

    def decorate(test: Any) -> Any:
        if not SOAK:
            test = settings(max_examples=RANDOM)(test)
        for i, recipe in enumerate(everything(mixed)):
            test = example(recipe, *(values[i % len(values)] for values in more))(test)
        return test

    return decorate


def recipes(*, mixed: bool = True) -> st.SearchStrategy[Recipe]:
    """Any recipe; `mixed=False` leaves out parts in another precision than the rest."""
    return st.sampled_from(sorted(INPUTS)).flatmap(
        lambda kind: st.builds(
            Recipe,
            st.just(kind),
            st.lists(pieces(kind, mixed), min_size=1, max_size=4).map(tuple),
            st.frozensets(st.integers(0, 3), max_size=1),
            st.integers(0, 3),
        )
    )


def pieces(kind: str, mixed: bool) -> st.SearchStrategy[Any]:
    alone = single_pieces(kind)
    wrappers = ["residual", "shared", *(["double"] if mixed else [])]
    return st.one_of(alone, alone, st.tuples(st.sampled_from(wrappers), alone))


def single_pieces(kind: str) -> st.SearchStrategy[Any]:
    if kind in CONVOLVED:
        convolution = st.tuples(
            st.just("conv"),
            st.sampled_from([1, 2, 4]),  # groups, up to depthwise
            st.integers(1, 3),  # kernel
            st.integers(1, 2),  # dilation
            st.sampled_from(["zeros", "circular"]),
            st.booleans(),  # bias
            st.sampled_from(["", *DRESSES, "channels last"]),
        )
        return st.one_of(convolution, convolution, st.sampled_from(MAP_PIECES))
    linear = st.tuples(st.just("linear"), st.booleans(), st.sampled_from(["", *DRESSES]))
    names = [*VECTOR_PIECES, *(TOKEN_PIECES if kind == "tokens" else ["batch norm"])]
    return st.one_of(linear, st.sampled_from(names))


class Shift(nn.Module):
    """A parametrization for biases."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Tied(nn.Module):
    """An encoder and a decoder with one weight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


class Scale(nn.Module):
    """A free scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x if self.inner.batch_first else x.transpose(0, 1)
        out = self.inner(tokens, tokens, tokens, need_weights=False)[0]
        return out if self.inner.batch_first else out.transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self, cells: nn.RNNBase) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0] if self.cells.batch_first else self.cells(x.transpose(0, 1))[0].transpose(0, 1)


class Folded(nn.Module):
    """Tokens in the batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(0, 1)).unflatten(0, x.shape[:2])


class Wrapped(nn.Module):
    """A residual link around a piece, a piece used twice, or a piece in double precision."""

    def __init__(self, how: str, inner: nn.Module) -> None:
        super().__init__()
        self.how, self.inner = how, inner

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "residual":
            return x + self.inner(x)
        if self.how == "shared":
            return self.inner(torch.tanh(self.inner(x)))
        return self.inner(x.double()).to(x.dtype)


class Assembled(nn.Module):
    def __init__(self, recipe: Recipe, head: nn.Module) -> None:
        super().__init__()
        self.recipe = recipe
        self.parts = nn.ModuleList(make_piece(piece, recipe.kind) for piece in recipe.pieces)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.tanh(part(x))
        if self.recipe.kind == "tokens":
            x = x.mean(1)
        elif self.recipe.kind in CONVOLVED:
            x = x.flatten(2).mean(-1)
        return self.head(x)

    def fit_precision(self, dtype: torch.dtype) -> Assembled:
        self.to(dtype)
        for part in self.parts:
            if isinstance(part, Wrapped) and part.how == "double":
                part.double()
        return self


def build(recipe: Recipe, dtype: torch.dtype = torch.float64, head: nn.Module | None = None) -> Assembled:
    """In eval mode, with batch statistics that are not those of a new network."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = Assembled(recipe, head or nn.Linear(WIDTH, 3)).fit_precision(dtype)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    for index in recipe.frozen:
        if index < len(model.parts):
            model.parts[index].requires_grad_(False)
    return model.eval()


def make_piece(piece: Any, kind: str) -> nn.Module:
    dims = CONVOLVED.get(kind, 0)
    if isinstance(piece, str):
        makers = {
            "batch norm": lambda: {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims](
                WIDTH
            ),
            "group norm": lambda: nn.GroupNorm(2, WIDTH),
            "layer norm": lambda: nn.LayerNorm(WIDTH),
            "rms norm": lambda: nn.RMSNorm(WIDTH),
            "dropout": lambda: nn.Dropout(0.3),
            "tied": Tied,
            "scale": Scale,
            "attention": lambda: Attention(batch_first=True),
            "attention first": lambda: Attention(batch_first=False),
            "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 6, batch_first=True),
            "lstm": lambda: Recurrent(nn.LSTM(WIDTH, WIDTH, batch_first=True)),
            "gru": lambda: Recurrent(nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)),
            "rnn first": lambda: Recurrent(nn.RNN(WIDTH, WIDTH, num_layers=2)),
            "folded": Folded,
        }
        return makers[piece]()
    if piece[0] == "linear":
        return dressed(nn.Linear(WIDTH, WIDTH, bias=piece[1]), piece[2])
    if piece[0] == "conv":
        _, groups, kernel, dilation, mode, bias, dress = piece
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        if mode == "circular" and dilation * (kernel - 1) > 2:  # wider than the smallest axis of a volume
            dilation = 1
        layer = convolution(
            WIDTH, WIDTH, kernel, padding="same", dilation=dilation, groups=groups, padding_mode=mode, bias=bias
        )
        if dress == "channels last":
            return layer.to(memory_format=torch.channels_last) if dims == 2 else layer
        return dressed(layer, dress)
    return Wrapped(piece[0], make_piece(piece[1], kind))


def dressed(layer: nn.Module, dress: str) -> nn.Module:
    if dress == "parametrized bias" and layer.bias is not None:
        nn.utils.parametrize.register_parametrization(layer, "bias", Shift())
    elif dress in ("weight_norm", "spectral_norm"):
        getattr(parametrizations, dress)(layer)
    return layer


def tolerance(recipe: Recipe) -> float:
    """Relative. torch's layer norm and attention differ by 1e-8 and more between a batch and one sample."""
    return (
        1e-5 if any(recipe.named(p) for p in ("layer norm", "rms norm", "encoder", "attention", "group norm")) else 1e-7
    )
