"""The `layers=` option: which layers are rotated."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

from torch import nn

from avalanche_rewc.core import geometry
from avalanche_rewc.core.checks import one_of, shown

LayerChoice = str | Sequence[str] | Callable[[str, nn.Module], bool]
NAMED_CHOICES = ("all", "all_but_last", "conv", "linear", "none")


def check_choice(layers: LayerChoice) -> None:
    """Refuse what can be refused without a model."""
    if callable(layers):
        return
    if not isinstance(layers, list | tuple | set):
        one_of("layers", layers, NAMED_CHOICES, ", a list of module names or a callable(name, module) -> bool")
    elif not all(isinstance(name, str) for name in layers):
        raise ValueError(f"layers={shown(layers)}: a list must hold module names, as in `model.named_modules()`")


def rotatable_layers(model: nn.Module, trainable: bool = False) -> dict[str, nn.Module]:
    """Every layer that could be rotated, by module name; only those whose weight is not frozen, if asked for."""
    return {
        name: module
        for name, module in model.named_modules()
        if geometry.is_rotatable(module) and (not trainable or geometry.weight_of(module).requires_grad)
    }


def select_layers(model: nn.Module, layers: LayerChoice, called: Sequence[str] = ()) -> dict[str, nn.Module]:
    """The layers to rotate, by module name.

    Args:
        called: names of the rotatable layers in the order in which a forward pass first calls them. "all_but_last"
            leaves out the one called last; without a forward pass, the one defined last.

    Raises:
        ValueError: a name that is no module or no rotatable layer; a choice that leaves nothing to rotate.
    """
    check_choice(layers)
    candidates = rotatable_layers(model, trainable=True)
    if isinstance(layers, str) and layers == "none":
        return {}
    if isinstance(layers, str):
        last = called[-1] if called else next(reversed(rotatable_layers(model)), None)
        wanted: Callable[[str, nn.Module], bool] = {
            "all": lambda name, module: True,
            "all_but_last": lambda name, module: name != last,
            "conv": lambda name, module: geometry.is_conv(module),
            "linear": lambda name, module: not geometry.is_conv(module),
        }[layers]
    elif callable(layers):
        wanted = layers
    else:
        chosen_modules = _modules_named(model, layers)
        wanted = lambda name, module: module in chosen_modules  # noqa: E731
    chosen = {name: module for name, module in candidates.items() if wanted(name, module)}
    if not chosen:
        there = ", ".join(candidates) or "none"
        raise ValueError(
            f"layers={layers!r} leaves no layer to rotate in this model (Linear and convolutions that train: {there}). "
            'Choose others, or layers="none" for diagonal EWC'
        )
    return chosen


def _modules_named(model: nn.Module, names: Iterable[str]) -> set[nn.Module]:
    modules = dict(model.named_modules(remove_duplicate=False))  # a shared module may be meant by any of its names
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
    return {modules[name] for name in names}
