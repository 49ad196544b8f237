"""The `layers=` option: which layers are rotated."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from torch import nn

from avalanche_rewc.core import geometry

LayerChoice = str | Sequence[str] | Callable[[str, nn.Module], bool]
NAMED_CHOICES = ("all", "all_but_last", "conv", "linear", "none")


def check_choice(layers: LayerChoice) -> None:
    """Refuse what can be refused without a model."""
    if isinstance(layers, str):
        if layers not in NAMED_CHOICES:
            close = difflib.get_close_matches(layers, NAMED_CHOICES, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"layers={layers!r} is not one of {', '.join(map(repr, NAMED_CHOICES))}, "
                f"a list of module names or a callable(name, module) -> bool{hint}"
            )
    elif not callable(layers) and not all(isinstance(name, str) for name in layers):
        raise ValueError(f"layers={layers!r}: a list must hold module names, as in `model.named_modules()`")


def rotatable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every layer that could be rotated, by module name."""
    return {name: module for name, module in model.named_modules() if geometry.is_rotatable(module)}


def select_layers(model: nn.Module, layers: LayerChoice, called: Sequence[str] = ()) -> dict[str, nn.Module]:
    """The layers to rotate, by module name.

    Args:
        called: names of the rotatable layers in the order in which a forward pass first calls them. "all_but_last"
            leaves out the one called last; without a forward pass, the one defined last.

    Raises:
        ValueError: a name that is no module or no rotatable layer; a choice that leaves nothing to rotate.
    """
    candidates = rotatable_layers(model)
    if layers == "none":
        return {}
    if isinstance(layers, str):
        last = called[-1] if called else next(reversed(candidates), None)
        wanted: Callable[[str, nn.Module], bool] = {
            "all": lambda name, module: True,
            "all_but_last": lambda name, module: name != last,
            "conv": lambda name, module: geometry.is_conv(module),
            "linear": lambda name, module: not geometry.is_conv(module),
        }[layers]
    elif callable(layers):
        wanted = layers
    else:
        _check_names(model, layers)
        wanted = lambda name, module: name in layers  # noqa: E731
    chosen = {name: module for name, module in candidates.items() if wanted(name, module)}
    if not chosen:
        there = ", ".join(candidates) or "none at all"
        raise ValueError(
            f"layers={layers!r} leaves no layer to rotate in this model (its Linear and convolution layers: {there}). "
            'Choose others, or layers="none" for diagonal EWC'
        )
    return chosen


def _check_names(model: nn.Module, names: Sequence[str]) -> None:
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            close = difflib.get_close_matches(name, modules, 3)
            hint = f"; close to it: {', '.join(close)}" if close else ""
            raise ValueError(f"layers: the model has no module {name!r}{hint}")
        if not geometry.is_rotatable(modules[name]):
            raise ValueError(
                f"layers: module {name!r} is a {type(modules[name]).__name__} without a plain weight of its own; only "
                "Linear and Conv1d/2d/3d can be rotated. Leave it out: it is protected by the plain diagonal"
            )
