"""Every method runs on digits, and does what its name says."""

import dataclasses
import itertools

import pytest
import torch
from avalanche.logging import BaseLogger
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import nn

from benchmarks import streams
from benchmarks.baselines import SigmoidDistillation
from benchmarks.execute import execute
from benchmarks.machine import Machine
from benchmarks.methods import FAMILIES, all_names
from benchmarks.strategies import make_strategy
from tests.benchmarks.small import config

CONVOLUTIONAL = {name for name in all_names() if name.startswith("rewc-conv") or name.endswith("-patch")}
REPEATED = {name for name in all_names() if name.startswith(("rewc-fc-", "rewc-all-"))}
"""Variants that are run with `rewc` already."""


class SmallConvolutions(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.fc = nn.Linear(36, 16)
        self.head = IncrementalClassifier(16, classes)

    def forward(self, x):
        return self.head(self.fc(self.conv(x).relu().flatten(1)).relu())


@pytest.fixture
def convolutional_digits(monkeypatch):
    """The digits with a network that has something for `rewc-conv` to rotate."""
    spec = dataclasses.replace(
        streams.STREAMS["digits"],
        convolutions=True,
        model={},
        network=lambda config, machine, classes: SmallConvolutions(classes),
    )
    monkeypatch.setitem(streams.STREAMS, "digits", spec)


class Log(BaseLogger):
    """Keeps the last value of every metric that Avalanche computes."""

    def __init__(self):
        super().__init__()
        self.last = {}

    def log_single_metric(self, name, value, x_plot):
        self.last[name] = value


def check(name, **settings):
    family = next(f for n, f in sorted(FAMILIES.items(), key=lambda item: -len(item[0])) if name.startswith(n))
    settings = {"learning_rate": 0.01, **settings}  # one epoch is enough then
    log = Log()
    result = execute(config(name, 1.0 if family.strength else None, **settings), loggers=[log])
    accuracy = result["accuracy"]
    assert result["config"]["method"] == name.removesuffix("-separate" if name == "ewc-separate" else "")
    assert accuracy[0][1] is None
    assert all(0 <= value <= 1 for value in accuracy[1])
    assert result["average_accuracy"] == sum(accuracy[1]) / 2 > 0.15
    if name == "joint":
        assert accuracy[0] == [None, None]
        assert result["forgetting"] is None
    else:
        assert result["forgetting"] == pytest.approx(accuracy[0][0] - accuracy[1][0])
        assert log.last["StreamForgetting/eval_phase/test_stream"] == pytest.approx(result["forgetting"])
        assert log.last["StreamBWT/eval_phase/test_stream"] == pytest.approx(result["backward_transfer"])


@pytest.mark.parametrize("name", [name for name in all_names() if name not in CONVOLUTIONAL | REPEATED])
def test_method_on_digits(name):
    check(name)


@pytest.mark.parametrize("name", ["rewc-conv", "rewc-patch", "rewc-conv-patch-exact"])
def test_method_with_convolutions(name, convolutional_digits):
    check(name, epochs=4)


def test_methods_learn_the_first_task_alike():
    """They share network, start, order of samples and loss: only what comes after can differ."""
    first = {
        name: execute(config(name, strength))["accuracy"][0][0]
        for name, strength in (("naive", None), ("ewc", 1), ("rewc", 1), ("lwf", 1), ("cumulative", None))
    }
    assert len(set(first.values())) == 1, first


@pytest.mark.parametrize(("name", "strength"), [("ewc", 0), ("ewc-online", 0), ("lwf", 0), ("rewc-none", 0)])
def test_without_strength_every_method_is_fine_tuning(name, strength):
    """Bit for bit: later tasks too have the same start of new classes and the same order of samples."""
    ours, naive = execute(config(name, strength, n_experiences=5)), execute(config("naive", n_experiences=5))
    assert ours["accuracy"] == naive["accuracy"]
    assert ours["loss"] == naive["loss"]


def test_upper_bounds_reach_what_the_others_do_not():
    """Under the sigmoid loss of new classes they must train old classes too, or they would be no upper bounds."""
    results = {name: execute(config(name, epochs=8))["accuracy"][-1] for name in ("naive", "joint", "cumulative")}
    for name in ("joint", "cumulative"):
        assert min(results[name]) > 0.8, results
    assert results["naive"][0] < 0.75, results


def test_sigmoid_distillation_keeps_old_probabilities():
    """Its gradient is zero where the old probabilities are kept, and it does not touch new classes."""
    plugin = SigmoidDistillation(2.0)
    teacher = nn.Linear(3, 2)
    plugin.teacher, plugin.old_classes = teacher, [0, 1]

    class Strategy:
        mb_x = torch.randn(5, 3)
        loss = torch.zeros(())

    output = torch.cat([teacher(Strategy.mb_x).detach(), torch.randn(5, 2)], 1).requires_grad_()
    Strategy.mb_output = output
    plugin.before_backward(Strategy)
    Strategy.loss.backward()
    assert output.grad.abs().max() < 1e-6
    moved = (output.detach() + torch.tensor([1.0, 0, 0, 0])).requires_grad_()
    Strategy.mb_output, Strategy.loss = moved, torch.zeros(())
    plugin.before_backward(Strategy)
    Strategy.loss.backward()
    expected = 2.0 / 5 * (moved[:, 0].sigmoid() - output[:, 0].sigmoid())
    assert torch.allclose(moved.grad[:, 0], expected, atol=1e-6)
    assert moved.grad[:, 2:].abs().max() == 0


def test_frozen_trains_nothing_but_the_new_outputs():
    """Weight decay would move old outputs without any gradient; they stay, too."""
    seen = []

    class Watch(SupervisedPlugin):
        def after_training_exp(self, strategy, **kwargs):
            seen.append({name: value.clone() for name, value in strategy.model.state_dict().items()})

    run = config("frozen", weight_decay=0.1, n_experiences=5)
    stream = streams.open_stream(run, Machine())
    strategy = make_strategy(
        run,
        lambda: streams.make_network(run, Machine(), stream.n_classes_per_exp[0]),
        plugins=[Watch()],
        evaluator=EvaluationPlugin(),
        device="cpu",
        pictures=False,
    )
    for experience in stream.train_stream[:3]:
        strategy.train(experience)
    for before, after in itertools.pairwise(seen):
        for name, value in before.items():
            assert torch.equal(after[name][: len(value)], value), name
    assert len(seen[2]["head.classifier.weight"]) == 6


@pytest.mark.parametrize(("name", "rank"), [("rewc", None), ("rewc-leading", 64)])
def test_names_mean_whole_bases_unless_they_say_otherwise(name, rank):
    """Whatever the library's default is."""
    run = config(name, 1)
    strategy = make_strategy(run, lambda: nn.Linear(64, 10), plugins=[], evaluator=None, device="cpu", pictures=False)
    assert strategy.rewc.options.rank == rank
