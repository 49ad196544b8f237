"""The plug-in's and the loss's own state: stored as data, compared before it is taken up."""

import copy
import io

import pytest
import torch
from avalanche.training import Naive

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc import plugin as module
from avalanche_rewc.losses import NewClassesBCE
from tests.toy import Growing, blob_stream, settings


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def learn(stream, strategy, experiences):
    for k in experiences:
        torch.manual_seed(k)
        strategy.train(stream.train_stream[k])
    return strategy


OPTIONS = [
    {"mode": "last", "layers": "all"},
    {"mode": "separate", "layers": ["body.0", "conv"], "conv_basis": "patch", "basis": "random", "rank": None},
    {"mode": "online", "decay_factor": 0.5, "fisher": "exact"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o["mode"])
def test_a_loaded_plugin_goes_on_as_the_other_would(options):
    """Only weights and the plug-in's state, by hand, with a fresh optimizer for each experience."""
    stream = blob_stream(dtype=torch.float32)
    first = learn(stream, REWC(ewc_lambda=30, seed=3, **options, **settings(Growing())), [0, 1])
    model, state = copy.deepcopy(first.model), through_a_file(first.rewc.state_dict())

    plugin = REWCPlugin(ewc_lambda=30, seed=3, **options)
    plugin.load_state_dict(state)
    for ours, theirs in zip(plugin.memories, first.rewc.memories, strict=True):
        assert (ours.positions, ours.entries) == (theirs.positions, theirs.entries)

    def go_on(model, plugin):
        learn(stream, Naive(**settings(model, plugins=[plugin])), [2])
        return {**model.state_dict(), **{f"F {name}": value for name, value in plugin.memories[-1].importances.items()}}

    kept, loaded = go_on(first.model, first.rewc), go_on(model, plugin)
    for name, value in kept.items():
        assert torch.equal(loaded[name], value), name
    assert len(plugin.memories) == (3 if options["mode"] == "separate" else 1)
    assert [entry.parameter for entry in plugin.entries] == [name for name, _ in model.named_parameters()]
    assert plugin.summary()


def test_nothing_learned_is_a_state_too():
    plugin = REWCPlugin(ewc_lambda=1)
    plugin.load_state_dict(through_a_file(REWCPlugin(ewc_lambda=1).state_dict()))
    learn(blob_stream(dtype=torch.float32), Naive(**settings(Growing(), plugins=[plugin])), [0])


@pytest.fixture(scope="module")
def learned():
    strategy = learn(blob_stream(dtype=torch.float32), REWC(ewc_lambda=30, **settings(Growing())), [0])
    return strategy.rewc.state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ewc_lambda": 31}, "ewc_lambda is 31 here and 30 in it"),
        ({"fisher": "sampled"}, "fisher is 'sampled' here and 'exact' in it"),
        ({"layers": lambda name, module: True}, "layers is '.*lambda.*' here and 'all_but_last' in it"),
        ({"seed": 1, "mode": "separate"}, "mode is 'separate' here and 'last' in it; seed is 1 here and None in it"),
    ],
)
def test_other_options_are_refused(options, message, learned):
    plugin = REWCPlugin(**{"ewc_lambda": 30, **options})
    with pytest.raises(ValueError, match=message):
        plugin.load_state_dict(learned)
    assert plugin.memories == []


def test_another_version_is_refused(learned, monkeypatch):
    monkeypatch.setattr(module, "STATE_FORMAT", 7)
    with pytest.raises(ValueError, match="format is 7 here and 2 in it"):
        REWCPlugin(ewc_lambda=30).load_state_dict(learned)


class Longer(Growing):
    def __init__(self):
        super().__init__()
        self.extra = torch.nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Growing(hidden=9), r"body.0.weight is \(9, 15\) here and \(8, 15\) in it"),
        (lambda: Growing(first=1), r"head.classifier.weight is \(1, 8\) here and \(2, 8\) in it"),
        (Longer, "extra.weight is not in it"),
        (lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 6)), "conv.weight is in it and not here"),
    ],
)
def test_another_model_is_refused_before_it_is_touched(model, message, learned):
    model = model()
    before = copy.deepcopy(model.state_dict())
    plugin = REWCPlugin(ewc_lambda=30)
    plugin.load_state_dict(learned)
    with pytest.raises(ValueError, match=message):
        learn(blob_stream(dtype=torch.float32), Naive(**settings(model, plugins=[plugin])), [1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_no_state_in_the_middle_of_an_experience():
    class Peek:
        def before_training_iteration(self, strategy, **kwargs):
            if strategy.clock.train_exp_counter:
                strategy.rewc.state_dict()

    strategy = REWC(ewc_lambda=30, **settings(Growing()))
    strategy.plugins.append(Peek())
    with pytest.raises(RuntimeError, match="middle of an experience"):
        learn(blob_stream(dtype=torch.float32), strategy, [0, 1])


def test_the_loss_remembers_its_classes():
    loss = NewClassesBCE()
    loss.learn([0, 1])
    loss.learn([5], task=2)
    other = NewClassesBCE()
    other.load_state_dict(through_a_file(loss.state_dict()))
    assert other.seen == {0: {0, 1}, 2: {5}}
    logits, targets = torch.randn(4, 6), torch.tensor([0, 1, 5, 5])
    loss.training = False
    assert torch.equal(other(logits, targets), loss(logits, targets))
    with pytest.raises(ValueError, match="unseen is True here and False in it"):
        NewClassesBCE(unseen=True).load_state_dict(loss.state_dict())
