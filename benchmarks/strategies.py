"""From a configuration to an Avalanche strategy that is ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from avalanche.training import EWC, Cumulative, JointTraining, LwF, Naive
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from avalanche_rewc import REWC
from avalanche_rewc.losses import NewClassesBCE
from avalanche_rewc.models import VGG16GlobalPool
from benchmarks.baselines import DropLearningRate, SeenClassesBCE, SigmoidDistillation, TrainNewOutputsOnly
from benchmarks.config import RunConfig
from benchmarks.expert_gate import ExpertGate
from benchmarks.methods import find_method
from benchmarks.names import UserError

EVAL_BATCH = 500
EVAL_BATCH_PICTURES = 32
UPPER_BOUNDS = ("joint", "cumulative")


@dataclass(frozen=True)
class Parts:
    """What every method's strategy is made of."""

    config: RunConfig
    network: Callable[[], nn.Module]
    base: dict[str, Any]
    """Arguments that all strategies take: criterion, sizes, plug-ins, evaluator, device."""

    def whole(self) -> dict[str, Any]:
        """`base` with a network and its optimizer."""
        model = self.network()
        return {**self.base, "model": model, "optimizer": make_optimizer(self.config, model)}


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a run; VGG-16's convolutions have a learning rate of their own."""
    parameters: Any = model.parameters()
    if isinstance(model, VGG16GlobalPool):
        rate = config.model["convolutions_lr"]
        parameters = model.parameter_groups(lr=config.learning_rate, convolutions_lr=rate)
    if config.optimizer == "adam":
        # One kernel for all of Adam: on a small network its many small ones take longer than forward and backward.
        return torch.optim.Adam(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay
    )


def make_criterion(config: RunConfig) -> Any:
    """The loss; upper bounds train all classes in their data, the others only the new ones."""
    if config.loss == "cross-entropy":
        return nn.CrossEntropyLoss()
    return SeenClassesBCE() if config.method in UPPER_BOUNDS else NewClassesBCE()


def make_strategy(
    config: RunConfig,
    network: Callable[[], nn.Module],
    *,
    plugins: list[Any],
    evaluator: Any,
    device: str,
    pictures: bool,
) -> SupervisedTemplate:
    """The strategy of a run.

    Args:
        network: makes a fresh network.
        plugins: run before the method's own.
        pictures: samples are large; evaluate in small batches.
    """
    if config.lr_drop_epoch is not None:
        plugins = [*plugins, DropLearningRate(config.lr_drop_epoch, config.lr_drop_factor)]
    base = {
        "criterion": make_criterion(config),
        "train_mb_size": config.batch_size,
        "train_epochs": config.epochs,
        "eval_mb_size": EVAL_BATCH_PICTURES if pictures else EVAL_BATCH,
        "device": device,
        "plugins": list(plugins),  # some of Avalanche's strategies append to the list they are given
        "evaluator": evaluator,
    }
    try:
        return BUILDERS[find_method(config.method).family](Parts(config, network, base))
    except (ValueError, AssertionError) as error:  # an option's value, which the method's own code checks
        raise UserError(f"method {config.method!r}: {error}") from error


def _naive(parts: Parts) -> SupervisedTemplate:
    return Naive(**parts.whole())


def _frozen(parts: Parts) -> SupervisedTemplate:
    whole = parts.whole()
    whole["plugins"] = [*whole["plugins"], TrainNewOutputsOnly()]
    return Naive(**whole)


def _ewc(parts: Parts) -> SupervisedTemplate:
    return EWC(ewc_lambda=parts.config.strength, **parts.config.options, **parts.whole())


def _rewc(parts: Parts) -> SupervisedTemplate:
    config = parts.config
    assert config.strength is not None  # make_config has seen to it
    options = {"rank": None, **config.options}
    return REWC(ewc_lambda=config.strength, seed=config.seed, **options, **parts.whole())


def _lwf(parts: Parts) -> SupervisedTemplate:
    return LwF(alpha=parts.config.strength, **parts.config.options, **parts.whole())


def _lwf_sigmoid(parts: Parts) -> SupervisedTemplate:
    assert parts.config.strength is not None
    whole = parts.whole()
    whole["plugins"] = [*whole["plugins"], SigmoidDistillation(parts.config.strength)]
    return SupervisedTemplate(**whole)


def _expert_gate(parts: Parts) -> SupervisedTemplate:
    options = parts.config.options
    return ExpertGate(
        network=parts.network,
        make_optimizer=lambda model: make_optimizer(parts.config, model),
        sizes=options["autoencoder"],
        autoencoder_epochs=options["autoencoder_epochs"],
        **parts.base,
    )


def _joint(parts: Parts) -> SupervisedTemplate:
    return JointTraining(**parts.whole())


def _cumulative(parts: Parts) -> SupervisedTemplate:
    return Cumulative(**parts.whole())


BUILDERS: dict[str, Callable[[Parts], SupervisedTemplate]] = {
    "naive": _naive,
    "frozen": _frozen,
    "ewc": _ewc,
    "rewc-none": _rewc,
    "rewc-conv": _rewc,
    "rewc-fc": _rewc,
    "rewc-all": _rewc,
    "rewc": _rewc,
    "lwf": _lwf,
    "lwf-sigmoid": _lwf_sigmoid,
    "expert-gate": _expert_gate,
    "joint": _joint,
    "cumulative": _cumulative,
}
