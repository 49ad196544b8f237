"""Time of a training step: real Avalanche strategies, stopped in the middle of an experience, take turns.

A step is what Avalanche's loop does with a mini-batch: gradients to zero, forward, loss, the plug-ins'
`before_backward` (where EWC and R-EWC add their penalties), backward, optimizer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training import EWC, Naive
from avalanche.training.plugins import EWCPlugin
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core import Memory
from avalanche_rewc.core.rotation import Matrix, apply_to_rows
from benchmarks.speed.networks import NETWORKS, Network
from benchmarks.speed.paper_form import in_paper_form
from benchmarks.speed.timing import interleaved

LAMBDA = 1e-3
"""Small, so that weights stay where they are: times do not depend on it."""
LEARNED = (1, 2, 5, 20)
"""Experiences that `separate` EWC has learned when it is timed."""
CLOSE = ("naive", "rewc", "paper", "ewc online", "ewc separate after 2", "ewc separate after 5")
"""Candidates so close to each other on large networks that it takes many rounds to tell them apart."""


def strategy_of(kind: Callable[..., SupervisedTemplate], network: Network, **options: Any) -> SupervisedTemplate:
    """A strategy with the network, Adam (the fused one, so that the optimizer hides nothing) and no evaluator."""
    torch.manual_seed(0)
    model = network.make()
    return kind(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-6, fused=True),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=network.batch_size,
        train_epochs=1,
        evaluator=None,
        **options,
    )


def experiences_of(network: Network, count: int) -> list[Any]:
    """Experiences of one batch each, with all classes."""
    data = []
    for seed in range(count):
        x, y = network.samples(network.batch_size, seed)
        dataset = TensorDataset(x, y)
        dataset.targets = y.tolist()  # type: ignore[attr-defined]
        data.append(as_classification_dataset(dataset))
    return list(with_classes_timeline(benchmark_from_datasets(train=data)).train_stream)


def in_training(strategy: SupervisedTemplate, experiences: list[Any]) -> SupervisedTemplate:
    """Learns all experiences but the last and begins with that one."""
    for experience in experiences[:-1]:
        strategy.train(experience)
    strategy.experience = experiences[-1]
    strategy.model.train()
    strategy._before_training()
    strategy._before_train_dataset_adaptation()
    strategy.train_dataset_adaptation()
    strategy._after_train_dataset_adaptation()
    strategy._before_training_exp(num_workers=0, shuffle=False)
    strategy.mbatch = next(iter(strategy.dataloader))
    strategy._unpack_minibatch()
    return strategy


def step_of(strategy: SupervisedTemplate) -> Callable[[], None]:
    """One training step of a strategy that is in training."""

    def step() -> None:
        strategy.optimizer.zero_grad()
        strategy.loss = strategy._make_empty_loss()
        strategy.mb_output = strategy.forward()
        strategy.loss += strategy.criterion()
        strategy._before_backward()
        strategy.backward()
        strategy.optimizer_step()

    return step


def paper_step(rewc: SupervisedTemplate, memory: Memory) -> Callable[[], None]:
    """One step of the paper's form of the network that `rewc` trains, with the same penalty."""
    model, penalty = in_paper_form(rewc.model, memory, LAMBDA)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-6, fused=True)
    loss = nn.CrossEntropyLoss()
    x, y = rewc.mbatch[0], rewc.mbatch[1]

    def step() -> None:
        optimizer.zero_grad()
        (loss(model(x), y) + penalty()).backward()
        optimizer.step()

    return step


def bases_alone(memory: Memory, batch_size: int) -> Callable[[], None]:
    """Only the products with bases in a step of an MLP, nothing around them: what no implementation can do without.

    A layer's two bases are applied on the way forward and on the way back; the data need no gradient, so the first
    layer's input basis is applied once.
    """
    matrices: list[Matrix] = []
    for rotation in memory.rotations.values():
        matrices += [rotation.input_matrix] * (2 if matrices else 1) + [rotation.output_matrix] * 2
    rows = [torch.randn(1, batch_size, (m if isinstance(m, Tensor) else m.left).shape[1]) for m in matrices]

    def step() -> None:
        for x, matrix in zip(rows, matrices, strict=True):
            apply_to_rows(x, matrix)

    return step


def as_if_learned(strategy: SupervisedTemplate, tasks: int) -> SupervisedTemplate:
    """`separate` EWC that remembers so many experiences: copies of the one it has learned cost the same."""
    (plugin,) = (plugin for plugin in strategy.plugins if isinstance(plugin, EWCPlugin))
    for task in range(1, tasks):
        plugin.saved_params[task] = copy.deepcopy(plugin.saved_params[0])
        plugin.importances[task] = copy.deepcopy(plugin.importances[0])
    strategy.clock.train_exp_counter = tasks
    return strategy


def ways_of(network: Network) -> dict[str, Callable[[], Callable[[], None]]]:
    """Every candidate, and what makes its step ready, in the experience after the first."""
    experiences = experiences_of(network, 2)

    def ready(kind: Callable[..., SupervisedTemplate], **options: Any) -> SupervisedTemplate:
        return in_training(strategy_of(kind, network, **options), experiences)

    def rewc(**options: Any) -> SupervisedTemplate:
        return ready(REWC, ewc_lambda=LAMBDA, fisher="sampled", samples_per_class=1, **options)

    def memory_of(rotated: SupervisedTemplate) -> Memory:
        (plugin,) = (plugin for plugin in rotated.plugins if isinstance(plugin, REWCPlugin))
        return plugin.memories[-1]

    def paper() -> Callable[[], None]:
        rotated = rewc()
        return paper_step(rotated, memory_of(rotated))

    def separate(tasks: int) -> Callable[[], None]:
        return step_of(as_if_learned(ready(EWC, ewc_lambda=LAMBDA, mode="separate"), tasks))

    is_mlp = len(network.sample_shape) == 1
    alone = {"bases alone": lambda: bases_alone(memory_of(rewc()), network.batch_size)} if is_mlp else {}
    return {
        "naive": lambda: step_of(ready(Naive)),
        "rewc": lambda: step_of(rewc()),
        "rewc whole": lambda: step_of(rewc(rank=None)),
        "rewc rank 32": lambda: step_of(rewc(rank=32)),
        "rewc original": lambda: step_of(rewc(space="original")),
        "rewc none": lambda: step_of(rewc(layers="none")),
        **alone,
        "paper": paper,
        "ewc online": lambda: step_of(ready(EWC, ewc_lambda=LAMBDA, mode="online", decay_factor=0.9)),
        **{f"ewc separate after {tasks}": partial(separate, tasks) for tasks in LEARNED},
    }


def measure(name: str, seconds: float, rounds: int, only: Sequence[str] = ()) -> dict[str, list[float]]:
    """Seconds of a step of every candidate, by round.

    Args:
        seconds: to spend, apart from preparations.
        rounds: at least, however long they take.
        only: these candidates; by default all.
    """
    ways = ways_of(NETWORKS[name])
    candidates = {way: ways[way]() for way in only or ways}
    return interleaved(candidates, seconds, at_least=rounds, at_most=200, warm_up=1)
