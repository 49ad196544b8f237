"""Objects as plain data and back: what can be stored without pickled code, and put into objects that exist already.

Nothing is ever made from a name found in a file. `from_data` puts values into an object the user's own script has built
(`current`), so a file can only change numbers.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from avalanche.evaluation import Metric
from avalanche.evaluation.metric_results import AlternativeValues
from avalanche.training import LearningWithoutForgetting
from avalanche.training.utils import ParamData
from torch import Tensor, nn

from avalanche_rewc.core.checks import refuse_differences

KIND = "__kind__"
CONSTANT = {KIND: "constant"}
"""Stands for what a script gives an object when it makes it and nobody changes: functions, classes, devices."""
KINDS = ("constant", "tensor", "numpy", "deque", "alternatives", "ParamData", "module", "object", "stateful")
"""Each with a method of `Rebuilder`."""
OPENED = (LearningWithoutForgetting,)
"""Classes of Avalanche, beside metrics, whose attributes are looked into."""


class NotData(ValueError):
    """Something that cannot be stored safely; the message names it."""


def to_data(value: Any, name: str, *, lenient: bool = False) -> Any:
    """Numbers, text, tensors and containers of them, that `torch.load(weights_only=True)` accepts.

    Args:
        name: of the value, for errors.
        lenient: leave out what is not data (handles of processes and the like) instead of raising.

    Raises:
        NotData: it names the attribute.
    """
    if value is None or (isinstance(value, bool | int | float | str | bytes | complex) and not _is_numpy(value)):
        return value
    if isinstance(value, Tensor):
        return _tensor_to_data(value)
    if _is_numpy(value):
        return {KIND: "numpy", "value": torch.from_numpy(np.array(value)), "scalar": not isinstance(value, np.ndarray)}
    deeper = functools.partial(to_data, lenient=lenient)
    if type(value) in (list, tuple, torch.Size):
        items = [deeper(item, f"{name}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if type(value) is set:
        return {deeper(item, f"{name}, an item") for item in value}
    if type(value) in (dict, defaultdict, OrderedDict):
        if any(not isinstance(key, str | int | float | tuple | None) or key == KIND for key in value):
            raise NotData(f"{name} has keys that are not text or numbers")
        return {key: deeper(item, f"{name}[{key!r}]") for key, item in value.items()}
    if type(value) is deque:
        return {KIND: "deque", "items": [deeper(v, f"{name}, an item") for v in value], "length": value.maxlen}
    if isinstance(value, AlternativeValues):  # the same as a tensor and as a picture; the tensor is data
        forms = [deeper(form, name) for form in value.alternatives if isinstance(form, Tensor | float | int)]
        return {KIND: "alternatives", "forms": forms}
    if isinstance(value, ParamData):
        return {KIND: "ParamData", "name": value.name, "value": _tensor_to_data(value.data)}
    if isinstance(value, nn.Module):
        return {KIND: "module", **module_state(value, name)}
    if _is_opened(value):
        return {KIND: "object", "class": type(value).__qualname__, "attributes": attributes(value, name, lenient)}
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return {KIND: "stateful", "state": deeper(value.state_dict(), f"{name}.state_dict()")}
    constants = (type, torch.device, torch.dtype, functools.partial, PurePath)
    if lenient or inspect.isroutine(value) or isinstance(value, constants):
        return CONSTANT
    raise NotData(f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which is not plain data")


def attributes(value: Any, name: str, lenient: bool = False) -> dict[str, Any]:
    """All attributes of an object that are data, as such."""
    found = {key: to_data(item, f"{name}.{key}", lenient=lenient) for key, item in vars(value).items()}
    return {key: item for key, item in found.items() if item is not CONSTANT}


def module_state(module: nn.Module, name: str) -> dict[str, Any]:
    """The state of a network: its state_dict, and what is frozen or in eval mode."""
    return {
        "state": to_data(module.state_dict(), f"{name}.state_dict()"),
        "frozen": [key for key, parameter in module.named_parameters() if not parameter.requires_grad],
        "evaluating": [key for key, part in module.named_modules() if not part.training],
    }


@dataclass(frozen=True)
class Rebuilder:
    """From data back to what it was.

    Attributes:
        device: of tensors that were not on the CPU.
        copy_of_model: makes a network as the model was after the last training; networks found in the state of a
            plug-in (a teacher) are copies of that.
    """

    device: torch.device
    copy_of_model: Callable[[], nn.Module]

    def from_data(self, data: Any, current: Any, name: str) -> Any:
        """The value; `current` is what stands in its place now, and is changed and returned where it is an object.

        Raises:
            ValueError: there is no such object here; it names it.
        """
        if isinstance(data, dict) and KIND in data:
            if data[KIND] not in KINDS:
                raise ValueError(f"{name} is of a kind that is not known, {data[KIND]!r}")
            rebuild: Callable[[Any, Any, str], Any] = getattr(self, f"_{data[KIND]}")
            return rebuild(data, current, name)
        if isinstance(data, dict):
            if isinstance(current, defaultdict) and current.default_factory is not None:
                current.clear()
                for key, item in data.items():
                    current[key] = self.from_data(item, current.default_factory(), f"{name}[{key!r}]")
                return current
            known = current if isinstance(current, dict) else {}
            return {key: self.from_data(item, known.get(key), f"{name}[{key!r}]") for key, item in data.items()}
        if isinstance(data, list | tuple):
            same = isinstance(current, list | tuple) and len(current) == len(data)
            known_items = current if same else [None] * len(data)
            pairs = zip(data, known_items, strict=True)
            items = [self.from_data(item, known, f"{name}[{i}]") for i, (item, known) in enumerate(pairs)]
            return items if isinstance(data, list) else tuple(items)
        return data

    def set_attributes(self, target: Any, data: dict[str, Any], name: str) -> None:
        """Give an object the values its attributes had."""
        for key, item in data.items():
            current = getattr(target, key, None)
            if (key not in vars(target) and hasattr(target, key)) or not _is_data(current, f"{name}.{key}"):
                raise ValueError(f"{name}.{key} is not a value that can be set")
            setattr(target, key, self.from_data(item, current, f"{name}.{key}"))

    def load_module(self, module: nn.Module, data: dict[str, Any], name: str) -> nn.Module:
        """The inverse of `module_state`, into a network of the same shape."""
        state = self.from_data(data["state"], None, name)
        refuse_differences(f"the state of the {name}", _tensors(module.state_dict()), _tensors(state))
        module.load_state_dict(state)
        frozen, evaluating = set(data["frozen"]), set(data["evaluating"])
        for key, parameter in module.named_parameters():
            parameter.requires_grad_(key not in frozen)
        for key, part in module.named_modules():
            part.training = key not in evaluating
        return module

    # One method for each kind.

    def _constant(self, data: Any, current: Any, name: str) -> Any:
        return current

    def _tensor(self, data: Any, current: Any, name: str) -> Tensor:
        value: Tensor = data["value"].to(self.device)
        return value

    def _numpy(self, data: Any, current: Any, name: str) -> Any:
        value = data["value"].numpy()
        return value[()] if data["scalar"] else value

    def _deque(self, data: Any, current: Any, name: str) -> deque[Any]:
        return deque(self.from_data(data["items"], None, name), data["length"])

    def _alternatives(self, data: Any, current: Any, name: str) -> AlternativeValues:
        return AlternativeValues(*self.from_data(data["forms"], None, name))

    def _ParamData(self, data: Any, current: Any, name: str) -> ParamData:
        value = self.from_data(data["value"], None, name)
        return ParamData(data["name"], init_tensor=value, device=value.device)

    def _module(self, data: Any, current: Any, name: str) -> nn.Module:
        return self.load_module(self.copy_of_model(), data, name)

    def _object(self, data: Any, current: Any, name: str) -> Any:
        if type(current).__qualname__ != data["class"]:
            raise ValueError(f"{name} is {data['class']} in the checkpoint and {type(current).__qualname__} here")
        self.set_attributes(current, data["attributes"], name)
        return current

    def _stateful(self, data: Any, current: Any, name: str) -> Any:
        if not callable(getattr(current, "load_state_dict", None)):
            raise ValueError(f"{name} has a state in the checkpoint, and nothing that could take it is there now")
        current.load_state_dict(self.from_data(data["state"], None, name))
        return current


def _tensors(state: dict[str, Any]) -> dict[str, Tensor | None]:
    """What of a state_dict has a shape that must fit; a module's extra state may be anything."""
    return {key: value if isinstance(value, Tensor) else None for key, value in state.items()}


def _is_numpy(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def _is_data(value: Any, name: str) -> bool:
    """Whether `attributes` would have stored it; functions and handles of a script are not a file's to replace."""
    try:
        return to_data(value, name) is not CONSTANT
    except NotData:
        return False


def _is_opened(value: Any) -> bool:
    return Metric in type(value).__mro__ or isinstance(value, OPENED)


def _tensor_to_data(value: Tensor) -> Any:
    """On the CPU, so that a machine without that device can read it; a mark says that it has to go back."""
    stored = value.detach().cpu()
    if stored.untyped_storage().nbytes() > stored.numel() * stored.element_size():
        stored = stored.clone()  # else all of what it is a view of would be stored
    return stored if value.device.type == "cpu" else {KIND: "tensor", "value": stored}
