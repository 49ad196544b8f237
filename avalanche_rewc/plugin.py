"""R-EWC as an Avalanche plug-in: it only says *when*; `avalanche_rewc.core` says *what*."""

from __future__ import annotations

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.models import DynamicModule
from avalanche.training.plugins import EWCPlugin, MASPlugin, RWalkPlugin, SynapticIntelligencePlugin
from torch import nn

from avalanche_rewc.core import (
    BasisFunction,
    ConvBasis,
    Entry,
    FisherKind,
    LayerChoice,
    Memory,
    ProtectedTraining,
    Space,
    consolidate,
    rehearse,
)
from avalanche_rewc.core.checks import refuse_differences
from avalanche_rewc.core.plan import PROBE_SAMPLES
from avalanche_rewc.core.reflections import DEFAULT_RANK
from avalanche_rewc.core.selection import select_layers
from avalanche_rewc.core.wrappers import refuse_replicas, unwrapped
from avalanche_rewc.options import DEFAULT_SAMPLES, Mode, Options
from avalanche_rewc.report import summary_table
from avalanche_rewc.sampling import ExperienceBatches, check_experience

DEFAULT_LAMBDA = 1e4
"""See benchmarks/RESULTS.md for what it rests on."""
ESTIMATION_BATCH = 256
"""Samples that are read at once for an estimation, which divides them further if they take too much memory."""

STATE_FORMAT = 2
"""Of `REWCPlugin.state_dict()`. Raise it when older states no longer mean the same."""

WEIGHT_REGULARISERS = (EWCPlugin, MASPlugin, RWalkPlugin, SynapticIntelligencePlugin)


class REWCPlugin(SupervisedPlugin, supports_distributed=False):  # type: ignore[misc, call-arg]
    """Rotated Elastic Weight Consolidation ("Rotate your Networks", Liu et al., ICPR 2018).

    After every experience: merge the rotated weights, estimate the experience's Kronecker factors, bases and diagonal
    Fisher. While the next one trains: the weights live in the rotated coordinates, and `λ/2 · Σ F (θ' − θ'*)²` is added
    to the loss. Between experiences and in evaluation the model is the ordinary module it was.

    Args:
        ewc_lambda: λ, the strength of the penalty. The default is meant for `normalize=True`.
        layers: which layers are rotated: "all", "all_but_last" (the one the forward pass calls last stays as it is),
            "conv", "linear", "none" (diagonal EWC), a list of module names, or a callable(name, module) -> bool. Every
            other trainable parameter is protected by the plain diagonal.
        conv_basis: "channel" rotates the channels of a convolution (the paper), "patch" channels and kernel positions
            together (the basis of (E)KFAC).
        space: "rotated": the optimizer walks in rotated coordinates (the paper). "original": only the penalty is
            rotated, the model is never touched. The same under SGD, not under Adam.
        fisher: "exact" (expectation over all classes; up to as many backward signals as there are classes), "sampled"
            (labels drawn from the model, the paper), "empirical" (the data's labels).
        samples_per_class: how many samples of each class of an experience the estimate uses; None: all.
        mode: "last" keeps the importances of the last experience only (the paper; memory and time stay flat),
            "separate" one set for every experience, "online" one decaying sum.
        decay_factor: weight of the earlier importances in "online" mode, between 0 and 1.
        basis: from the two factors to the two bases: "eigen", or for ablations "identity", "input_only",
            "output_only", "authors", "printed", "random", "random_input", "random_output", or a function
            (input_factor, output_factor) -> (input_basis, output_basis), which may have only `rank` columns.
        rank: how many leading vectors of each basis (the first columns, if it is a function of yours) become axes; the
            other axes stay near the original ones, and a basis is applied for 2·rank/width of what a whole one costs.
            None: whole ones, the paper; needed for "authors", "printed" and the random ones, which lead nowhere.
        normalize: divide the importances by their sum, the trace of the Fisher. A well-trained network is certain of
            its samples and its Fisher is tiny, by how much depends on epochs, data, loss and `fisher`; divided by the
            trace, the same λ serves all of them. False: the paper's penalty, whose λ has to be found each time.
        seed: of the draws of samples and labels. The global generators are neither used nor changed. None: derived
            from torch's initial seed, so that `torch.manual_seed` at the top of a script is enough.

    Raises:
        ValueError: an option that cannot work, here or, where it takes the model or the data to know, before the
            first change of the model.
    """

    def __init__(
        self,
        ewc_lambda: float = DEFAULT_LAMBDA,
        *,
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
    ) -> None:
        """See the class."""
        super().__init__()
        self.options = Options(
            ewc_lambda,
            layers,
            conv_basis,
            space,
            fisher,
            samples_per_class,
            mode,
            decay_factor,
            basis,
            rank,
            normalize,
            seed,
        )
        self.memories: list[Memory] = []
        """What is remembered, oldest first; one entry at most unless `mode="separate"`."""
        self._training: ProtectedTraining | None = None
        self._experiences_learned = 0
        self._check_model = False

    @property
    def ewc_lambda(self) -> float:
        """λ of the penalty."""
        return self.options.ewc_lambda

    @property
    def entries(self) -> list[Entry]:
        """What the last consolidation did to each parameter."""
        return self.memories[-1].entries if self.memories else []

    def summary(self) -> str:
        """A table of every parameter and what protects it, as of the last experience learned."""
        return summary_table(self.entries)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, to be stored between two experiences: tensors, and plain containers of plain data.

        Save the model with it, as it is then. `avalanche_rewc.resume.Resumable` does that and all the rest.
        """
        if self._training is not None:
            raise RuntimeError("the model is in the middle of an experience: take the state when it has been learned")
        return {
            "format": STATE_FORMAT,
            "options": self.options.to_dict(),
            "experiences_learned": self._experiences_learned,
            "memories": [memory.state_dict() for memory in self.memories],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what another plug-in with the same options did. The model is checked when training starts.

        Raises:
            ValueError: a state of another version or with other options; the message says what differs.
        """
        refuse_differences("the state", {"format": STATE_FORMAT}, {"format": state.get("format")})
        refuse_differences("the state", self.options.to_dict(), state["options"])
        self.memories = [Memory.from_state_dict(memory) for memory in state["memories"]]
        self._experiences_learned = state["experiences_learned"]
        self._check_model = bool(self.memories)

    # Callbacks, in the order in which Avalanche calls them.

    def before_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        """Refuse what cannot work while the model is still untouched."""
        check_experience(strategy.experience, self.options.samples_per_class, self.options.fisher)
        self._refuse_company(strategy)
        if self._check_model:
            _refuse_other_model(unwrapped(strategy.model), self.entries)
            self._check_model = False
        if self.options.space == "rotated":
            refuse_replicas(strategy.model)
        if not self.memories:
            select_layers(unwrapped(strategy.model), self.options.layers)

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """ROTATE. The head has grown and the optimizer knows about it."""
        self._combine(strategy)  # left over if the last training was interrupted
        self._rehearse(strategy)
        if self.memories:
            self._training = ProtectedTraining(
                strategy.model,
                self.memories,
                self.ewc_lambda,
                space=self.options.space,
                optimizer=strategy.optimizer,
                batch_size=strategy.train_mb_size,
            )

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty to the loss; the first experience has none."""
        if self._training is not None:
            strategy.loss += self._training.penalty()

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Evaluation, also in the middle of training, sees the plain model."""
        if self._training is not None:
            self._training.pause()

    def after_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Back to the rotated weights as they were."""
        if self._training is not None:
            self._training.resume()

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """COMBINE, then the factors, bases and Fisher of the experience just learned."""
        self._combine(strategy)
        seed = torch.initial_seed() if self.options.seed is None else self.options.seed
        seed = (seed * 1_000_003 + self._experiences_learned) % 2**63
        generator = torch.Generator().manual_seed(seed)
        batches = self._batches(strategy, generator, ESTIMATION_BATCH, num_workers=kwargs.get("num_workers", 0))
        online = self.options.mode == "online" and bool(self.memories)
        memory = consolidate(
            strategy.model,
            batches,
            layers=self.options.layers,
            conv_basis=self.options.conv_basis,
            fisher=self.options.fisher,
            basis=self.options.basis_function(seed),
            generator=generator,
            earlier=self.memories[-1] if online else None,
            decay=self.options.decay_factor or 0.0,
            normalize=self.options.normalize,
            rank=self.options.rank,
        )
        if self.options.mode != "online":
            memory.factors.clear()
        if self.options.mode != "separate":
            self.memories.clear()
        self.memories.append(memory)
        self._experiences_learned += 1

    def _batches(self, strategy: Any, generator: torch.Generator, size: int, num_workers: int = 0) -> ExperienceBatches:
        return ExperienceBatches(
            strategy.model,
            strategy.experience,
            self.options.samples_per_class,
            generator=generator,
            batch_size=size,
            device=strategy.device,
            num_workers=num_workers,
        )

    def _rehearse(self, strategy: Any) -> None:
        """Refuse a model whose Fisher could not be estimated before it trains, and not when it has."""
        with torch.random.fork_rng(devices=()):  # loading a sample may draw
            args, _ = next(iter(self._batches(strategy, torch.Generator(), PROBE_SAMPLES)()))
        rehearse(strategy.model, args, self.options.layers)

    def _combine(self, strategy: Any) -> None:
        if self._training is not None:
            self._training.end(strategy.optimizer)
            self._training = None

    def _refuse_company(self, strategy: Any) -> None:
        """Plug-ins that compare parameters with copies of them would compare different coordinates."""
        for other in strategy.plugins:
            if isinstance(other, REWCPlugin) and other is not self:
                raise ValueError("two R-EWC plug-ins cannot share a strategy; use one with the options you need")
            if isinstance(other, WEIGHT_REGULARISERS) and self.options.space == "rotated":
                raise ValueError(
                    f"{type(other).__name__} compares weights with copies of them and would meet rotated ones; beside "
                    'it use space="original", which leaves the model as it is'
                )


def _refuse_other_model(model: nn.Module, entries: list[Entry]) -> None:
    """The model a state was loaded for must be the one it was made with; only Avalanche's growing parts may differ."""
    growing = [name for name, module in model.named_modules() if isinstance(module, DynamicModule)]
    growing = [name for name in growing if name] or growing  # a model with growing parts is growing as a whole, too
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    here, there = {}, {}
    for entry in entries:
        there[entry.parameter] = entry.shape
        if entry.parameter in shapes:
            here[entry.parameter] = shapes.pop(entry.parameter)
            if _inside(entry.parameter, growing) and _at_least(here[entry.parameter], entry.shape):
                here[entry.parameter] = entry.shape
    here |= {name: shape for name, shape in shapes.items() if not _inside(name, growing)}
    refuse_differences("the state that was loaded", here, there, ". Load the weights of its own model first")


def _inside(parameter: str, modules: list[str]) -> bool:
    return any(parameter.startswith(f"{module}." if module else "") for module in modules)


def _at_least(shape: tuple[int, ...], old: tuple[int, ...]) -> bool:
    return len(shape) == len(old) and all(new >= size for new, size in zip(shape, old, strict=True))
