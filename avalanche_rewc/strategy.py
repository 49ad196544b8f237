"""R-EWC as an Avalanche strategy: `EWC(...)` becomes `REWC(...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins.evaluation import EvaluationPlugin, default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import nn
from torch.optim import Optimizer

from avalanche_rewc.core import BasisFunction, ConvBasis, FisherKind, LayerChoice, Space
from avalanche_rewc.core.reflections import DEFAULT_RANK
from avalanche_rewc.options import DEFAULT_SAMPLES, Mode
from avalanche_rewc.plugin import DEFAULT_LAMBDA, REWCPlugin


class REWC(SupervisedTemplate):  # type: ignore[misc]
    """Rotated Elastic Weight Consolidation. The options are those of `REWCPlugin`, the rest Avalanche's own.

    The plug-in, also found as `strategy.rewc`, comes first among the plug-ins, so that all others see the merged model
    when an experience ends. The list passed as `plugins` is not changed.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        ewc_lambda: float = DEFAULT_LAMBDA,
        layers: LayerChoice = "all_but_last",
        conv_basis: ConvBasis = "channel",
        space: Space = "rotated",
        fisher: FisherKind = "exact",
        samples_per_class: int | None = DEFAULT_SAMPLES,
        mode: Mode = "last",
        decay_factor: float | None = None,
        basis: str | BasisFunction = "eigen",
        rank: int | None = DEFAULT_RANK,
        normalize: bool = True,
        seed: int | None = None,
        train_mb_size: int = 1,
        train_epochs: int = 1,
        eval_mb_size: int | None = None,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator: EvaluationPlugin | Callable[[], EvaluationPlugin] = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ) -> None:
        """See `REWCPlugin` for the options of the method and Avalanche's `SupervisedTemplate` for the rest.

        Args:
            criterion: the loss; cross-entropy by default, `avalanche_rewc.losses.NewClassesBCE()` for the paper's.
        """
        self.rewc = REWCPlugin(
            ewc_lambda,
            layers=layers,
            conv_basis=conv_basis,
            space=space,
            fisher=fisher,
            samples_per_class=samples_per_class,
            mode=mode,
            decay_factor=decay_factor,
            basis=basis,
            rank=rank,
            normalize=normalize,
            seed=seed,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss() if criterion is None else criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[self.rewc, *(plugins or ())],
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )
