"""The state of a whole strategy between two experiences: taken, compared, put back."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace
from typing import Any

import torch
from avalanche.evaluation.metrics.amca import AMCAPluginMetric
from avalanche.training import EWC, MAS, LwF, Naive, SynapticIntelligence
from avalanche.training.plugins import (
    EWCPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
    MASPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.plugins.clock import Clock
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.templates.base_sgd import PeriodicEval
from torch import nn

from avalanche_rewc.resume.generators import generator_states, set_generator_states
from avalanche_rewc.resume.plain import NotData, Rebuilder, attributes, module_state, to_data
from avalanche_rewc.resume.structure import Growth

STRATEGIES = (SupervisedTemplate, Naive, EWC, LwF, SynapticIntelligence, MAS)
PLUGINS = (EWCPlugin, LwFPlugin, SynapticIntelligencePlugin, MASPlugin, LRSchedulerPlugin)
"""What of Avalanche itself is known to come back whole; other classes of its own keep samples, among other things."""
SETTINGS = ("train_mb_size", "train_epochs", "eval_mb_size", "eval_every")
TEMPLATE = {
    *("model", "optimizer", "_criterion", "plugins", "evaluator", "clock", "device", "experience", "is_training"),
    *("optimized_param_id", "current_eval_stream", "_eval_streams", "_distributed_check", "_stop_training"),
    *("adapted_dataset", "dataloader", "loss", "mbatch", "mb_output", "retain_graph", *SETTINGS),
}
"""Attributes of every strategy: taken care of one by one here, or without meaning between two experiences."""
EVERYWHERE = (Growth, PeriodicEval, Clock)
OWN_WAY = "give it state_dict() and load_state_dict(), which may be empty, or leave it out"


def describe(strategy: Any) -> dict[str, Any]:
    """What the script has built, of a strategy that has not learned anything yet, for comparison with another.

    Raises:
        NotData: something of it could not be put into a checkpoint; the message names it and the way out.
    """
    _refuse_unknown(strategy)
    optimizer, criterion = strategy.optimizer, strategy._criterion
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    return {
        "strategy": type(strategy).__qualname__,
        **{name: getattr(strategy, name) for name in SETTINGS},
        "criterion": {
            "class": getattr(criterion, "__qualname__", type(criterion).__qualname__),
            **_options(criterion),
        },
        "optimizer": {
            "class": type(optimizer).__qualname__,
            **to_data(optimizer.defaults, "optimizer", lenient=True),
            "groups": to_data(groups, "optimizer", lenient=True),
        },
        "model": {name: _shown(parameter) for name, parameter in strategy.model.named_parameters()},
        "modules": {name or "the model": _module(module) for name, module in strategy.model.named_modules()},
        "plug-ins": {f"{i} {type(p).__qualname__}": _plugin_state(p) for i, p in enumerate(_plugins(strategy))},
        "metrics": [str(metric) for metric in strategy.evaluator.metrics],
    }


def take(strategy: Any, growth: Growth) -> dict[str, Any]:
    """Everything that the next experiences depend on, as plain data.

    Raises:
        NotData: a plug-in or a metric keeps something that cannot be stored safely; the message names it.
    """
    criterion, evaluator = strategy._criterion, strategy.evaluator
    return {
        "growth": growth.events,
        "model": module_state(strategy.model, "model"),
        "criterion": module_state(criterion, "criterion") if isinstance(criterion, nn.Module) else None,
        "optimizer": to_data(strategy.optimizer.state_dict(), "optimizer"),
        "strategy": _own_attributes(strategy),
        "plug-ins": [_plugin_state(plugin) for plugin in _plugins(strategy)],
        "clock": attributes(strategy.clock, "clock"),
        "metrics": [_metric_state(metric) for metric in evaluator.metrics],
        "curves": {name: to_data(curve, name, lenient=True) for name, curve in evaluator.get_all_metrics().items()},
        "last values": to_data(evaluator.last_metric_results, "last values", lenient=True),
        "generators": generator_states(),
    }


def put_back(strategy: Any, growth: Growth, state: dict[str, Any]) -> None:
    """The inverse of `take`, into a strategy that `describe`s itself as the other did.

    Raises:
        ValueError: it does not fit after all; the message says where.
    """
    after_training = growth.replay(strategy, state["growth"])
    rebuilder = Rebuilder(strategy.device, lambda: copy.deepcopy(after_training))
    rebuilder.load_module(strategy.model, state["model"], "model")
    if state["criterion"] is not None:
        rebuilder.load_module(strategy._criterion, state["criterion"], "criterion")
    strategy.optimizer.load_state_dict(rebuilder.from_data(state["optimizer"], None, "optimizer"))
    own = _own_attributes(strategy)
    if strangers := state["strategy"].keys() & vars(strategy).keys() - own.keys():
        raise ValueError(f"strategy.{min(strangers)} is not a value that can be set")
    rebuilder.set_attributes(strategy, state["strategy"], "strategy")
    for plugin, found in zip(_plugins(strategy), state["plug-ins"], strict=True):
        name = type(plugin).__qualname__
        if _has_own_way(plugin):
            plugin.load_state_dict(rebuilder.from_data(found, None, name))
        else:
            rebuilder.set_attributes(plugin, found, name)
    rebuilder.set_attributes(strategy.clock, state["clock"], "clock")
    evaluator = strategy.evaluator
    for metric, found in zip(evaluator.metrics, state["metrics"], strict=True):
        rebuilder.set_attributes(metric, found, str(metric))
    for name, curve in state["curves"].items():
        evaluator.all_metric_results[name] = rebuilder.from_data(curve, None, name)
    evaluator.last_metric_results = rebuilder.from_data(state["last values"], None, "last values")
    set_generator_states(state["generators"])


def _plugins(strategy: Any) -> list[Any]:
    """The plug-ins but those that every strategy has."""
    return [p for p in strategy.plugins if p is not strategy.evaluator and not isinstance(p, EVERYWHERE)]


def _plugin_state(plugin: Any) -> dict[str, Any]:
    name = type(plugin).__qualname__
    try:
        if _has_own_way(plugin):
            return dict(to_data(plugin.state_dict(), f"{name}.state_dict()"))
        return attributes(plugin, name)
    except NotData as error:
        raise NotData(f"plug-in {error}: {OWN_WAY}") from error


def _own_attributes(strategy: Any) -> dict[str, Any]:
    """What a strategy keeps beyond the template; its plug-ins are stored as such."""
    plugins = [id(plugin) for plugin in strategy.plugins]
    own = {key: item for key, item in vars(strategy).items() if key not in TEMPLATE and id(item) not in plugins}
    return attributes(SimpleNamespace(**own), f"strategy {type(strategy).__qualname__}")


def _metric_state(metric: Any) -> dict[str, Any]:
    """Avalanche's metrics hold handles of the process and the like, which are made anew; others may not."""
    try:
        return attributes(metric, f"metric {metric}", lenient=_is_avalanche_s(metric))
    except NotData as error:
        raise NotData(f"{error}: leave the metric out") from error


def _refuse_unknown(strategy: Any) -> None:
    if _is_avalanche_s(strategy) and type(strategy) not in STRATEGIES:
        raise NotData(
            f"strategy {type(strategy).__qualname__} is not one of those that can be resumed "
            f"({', '.join(known.__qualname__ for known in STRATEGIES)}, REWC, and classes of your own)"
        )
    for plugin in _plugins(strategy):
        if _is_avalanche_s(plugin) and type(plugin) not in PLUGINS and not _has_own_way(plugin):
            raise NotData(
                f"plug-in {type(plugin).__qualname__} keeps what cannot be stored safely; a run with it cannot be "
                f"resumed (known are {', '.join(known.__qualname__ for known in PLUGINS)})"
            )
    for metric in strategy.evaluator.metrics:
        if isinstance(metric, AMCAPluginMetric):
            raise NotData(f"metric {metric} ({type(metric).__qualname__}) cannot be resumed: leave it out")
        _metric_state(metric)
    _own_attributes(strategy)


def _has_own_way(plugin: Any) -> bool:
    return callable(getattr(plugin, "state_dict", None)) and callable(getattr(plugin, "load_state_dict", None))


def _is_avalanche_s(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] == "avalanche"


def seed() -> int | None:
    """That torch was given; None if it was given none, and started with a random one of 53 bits."""
    found = torch.initial_seed()
    return found if found < 2**32 else None


def _shown(parameter: torch.Tensor) -> str:
    frozen = "" if parameter.requires_grad else ", frozen"
    return f"{tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}{frozen}"


def _module(module: nn.Module) -> str:
    """Its class and options, as it shows itself; not where in memory something is."""
    return f"{type(module).__qualname__}({re.sub(r' at 0x[0-9a-f]+', '', module.extra_repr())})"


def _options(criterion: Any) -> dict[str, Any]:
    """Plain values among its attributes, such as a label smoothing."""
    found = vars(criterion).items() if hasattr(criterion, "__dict__") else ()
    plain = {key: value for key, value in found if not key.startswith("_") and key != "training"}
    return {key: value for key, value in plain.items() if value is None or isinstance(value, bool | int | float | str)}
