"""The plug-in at work in real Avalanche strategies."""

import copy
import pickle

import pytest
import torch
from avalanche.models import IncrementalClassifier
from avalanche.training import Naive
from avalanche.training.plugins import LwFPlugin
from torch import nn

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core import is_rotated, signals
from tests import oracle
from tests.toy import Growing, blob_stream, settings


@pytest.fixture(autouse=True)
def _growing_heads(monkeypatch):
    """Avalanche grows heads in float32 and from the global generator; runs to be compared need neither."""
    plain = IncrementalClassifier.adaptation

    def adaptation(self, experience):
        with torch.random.fork_rng():
            torch.manual_seed(len(experience.classes_seen_so_far))
            plain(self, experience)
        self.double()

    monkeypatch.setattr(IncrementalClassifier, "adaptation", adaptation)


def train(make, epochs=5, **options):
    """Weights after every step of three experiences with a growing head, float64."""
    stream = blob_stream()
    model = Growing().double()
    trajectory = []
    strategy = make(**settings(model, train_epochs=epochs), **options)

    class Record:
        def after_update(self, strategy, **kwargs):
            trajectory.append({k: v.clone() for k, v in strategy.model.state_dict().items()})

    strategy.plugins.append(Record())
    for experience in stream.train_stream:
        torch.manual_seed(experience.current_experience)
        strategy.train(experience, num_workers=0)
    return trajectory, strategy


def assert_same(ours, reference, tolerance):
    assert len(ours) == len(reference) > 50
    for a, b in zip(ours, reference, strict=True):
        for key in b:
            torch.testing.assert_close(a[key], b[key], rtol=tolerance, atol=tolerance, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"mode": "separate"},
        {"mode": "separate", "rank": 1},  # bases so cheap that older ones are reached by the original coordinates
        {"mode": "online", "decay_factor": 0.7},
    ],
)
@pytest.mark.parametrize("conv_basis", ["channel", "patch"])
def test_rotated_and_original_space_walk_the_same_way_under_sgd(conv_basis, mode):
    """SGD with momentum and weight decay, a growing and rotated head, three experiences."""
    options = {"ewc_lambda": 3.0, "layers": "all", "fisher": "exact", "seed": 1, "conv_basis": conv_basis, **mode}
    rotated, _ = train(REWC, space="rotated", **options)
    original, _ = train(REWC, space="original", **options)
    assert_same(rotated, original, 1e-9)
    free, _ = train(REWC, space="original", **{**options, "ewc_lambda": 0.0})
    assert max((free[-1][k] - original[-1][k]).abs().max() for k in original[-1]) > 1e-3  # the penalty does something


@pytest.mark.parametrize("space", ["rotated", "original"])
def test_without_lambda_it_is_naive(space):
    ours, _ = train(REWC, ewc_lambda=0.0, layers="all", space=space)
    naive, _ = train(Naive)
    assert_same(ours, naive, 0.0 if space == "original" else 1e-9)


class HandWrittenEWC:
    """Diagonal EWC in the most literal way: true Fisher of the last experience from the oracle, plain autograd."""

    def __init__(self, ewc_lambda):
        self.ewc_lambda, self.fisher = ewc_lambda, None

    def before_backward(self, strategy, **kwargs):
        if self.fisher is not None:
            for name, parameter in strategy.model.named_parameters():
                old = self.anchor[name]
                now = parameter[tuple(slice(0, n) for n in old.shape)]
                strategy.loss += self.ewc_lambda / 2 * (self.fisher[name] * (now - old) ** 2).sum()

    def after_training_exp(self, strategy, **kwargs):
        model = strategy.model
        modes = {m: m.training for m in model.modules()}
        model.eval()
        data = strategy.experience.dataset
        x = torch.stack([data[i][0] for i in range(len(data))])
        self.fisher = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"))
        self.anchor = {n: p.detach().clone() for n, p in model.named_parameters()}
        for m, mode in modes.items():
            m.training = mode


def test_layers_none_is_diagonal_ewc():
    ours, _ = train(REWC, ewc_lambda=20.0, layers="none", fisher="exact", samples_per_class=None, normalize=False)
    reference, _ = train(lambda **kwargs: Naive(**kwargs, plugins=[HandWrittenEWC(20.0)]))
    assert_same(ours, reference, 1e-8)


def test_basis_identity_is_diagonal_ewc_too():
    identity, _ = train(REWC, ewc_lambda=20.0, layers="all", basis="identity", fisher="exact")
    none, _ = train(REWC, ewc_lambda=20.0, layers="none", fisher="exact")
    assert_same(identity, none, 1e-9)


def test_the_penalty_is_really_there():
    """None in experience 1; from the second step of experience 2 on, its value and gradient are the formula's."""
    stream = blob_stream(2)
    model = Growing().double()
    seen = []

    class Watch(REWCPlugin):
        def before_backward(self, strategy, **kwargs):
            data_loss = strategy.loss.clone()
            super().before_backward(strategy, **kwargs)
            penalty = (strategy.loss - data_loss).item()
            if self._training is None:
                assert penalty == 0
                seen.append(None)
                return
            memory = self._training.memories[-1]
            expected = torch.zeros((), dtype=torch.float64)
            leaves = {n: p.detach().clone().requires_grad_() for n, p in strategy.model.named_parameters()}
            for name, leaf in leaves.items():
                if name in memory.importances:
                    squares = memory.importances[name] * (leaf - memory.anchors[name]) ** 2
                    expected = expected + 50 / 2 * memory.scale * squares.sum()
            assert penalty == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
            parameters = dict(strategy.model.named_parameters())
            ours = torch.autograd.grad(self._training.penalty(), list(parameters.values()))
            reference = torch.autograd.grad(expected, list(leaves.values()))
            for gradient, formula in zip(ours, reference, strict=True):
                torch.testing.assert_close(gradient, formula)
            seen.append(float(expected.detach()))

    strategy = Naive(**settings(model), plugins=[Watch(50.0, layers="all", fisher="exact")])
    for experience in stream.train_stream:
        strategy.train(experience)
    first_of_second = seen.index(next(v for v in seen if v is not None))
    assert all(v is None for v in seen[:first_of_second])
    assert seen[first_of_second] == pytest.approx(0.0, abs=1e-12)  # the weights are still the anchor
    assert seen[first_of_second + 1] > 0
    assert max(seen[first_of_second:]) > 1e-6


def test_the_model_is_ordinary_except_while_it_trains():
    stream = blob_stream()
    model = Growing().double()
    keys, inside, at_eval = set(model.state_dict()), [], []

    class Look:
        def before_training_epoch(self, strategy, **kwargs):
            inside.append(any(is_rotated(m) for m in strategy.model.modules()))

        def before_eval_exp(self, strategy, **kwargs):
            at_eval.append([type(m) for m in strategy.model.modules()])
            pickle.dumps(strategy.model)

    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(model, eval_every=1), plugins=[Look()])
    classes = [type(m) for m in model.modules()]
    for experience in stream.train_stream:
        strategy.train(experience, eval_streams=[stream.test_stream])
        assert strategy.model is model
        assert [type(m) for m in model.modules()] == classes
        assert set(model.state_dict()) == keys
        copied = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        x = torch.randn(4, 5).double()
        model.eval()
        assert torch.equal(copied.eval()(x), model(x))
        assert torch.equal(again.eval()(x), model(x))
    assert inside == [False, False, True, True, True, True]
    assert len(at_eval) > 9
    assert all(found == classes for found in at_eval)


def test_evaluation_in_between_does_not_change_the_course_of_training():
    """To the bit: the rotated weights are put aside, not computed again."""

    class Evaluate:
        def after_update(self, strategy, **kwargs):
            with torch.random.fork_rng():  # a loader draws a seed each time it is used
                strategy.eval(blob_stream().test_stream)

    runs = []
    for plugins in ([], [Evaluate()]):
        model = Growing(first=6).double()  # no growth, which evaluation would advance
        strategy = REWC(ewc_lambda=1.0, layers="all", seed=3, **settings(model), plugins=plugins)
        for experience in blob_stream().train_stream:
            torch.manual_seed(7)
            strategy.train(experience)
        runs.append(model.state_dict())
    assert all(torch.equal(runs[0][k], runs[1][k]) for k in runs[0])


def test_weights_changed_in_between_are_taken_up():
    """Somebody who changes the plain weights during an evaluation is heard."""
    stream = blob_stream()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(Growing().double()))
    strategy.train(stream.train_stream[0])

    class Reset:
        def before_eval_exp(self, strategy, **kwargs):
            with torch.no_grad():
                strategy.model.body[0].weight.fill_(0.25)

        def after_update(self, strategy, **kwargs):
            strategy.eval(stream.test_stream[0])
            assert torch.allclose(strategy.model.body[0].weight, torch.tensor(0.25).double())

    strategy.plugins.append(Reset())
    strategy.train(stream.train_stream[1])


def test_lwf_before_the_plugin_copies_a_plain_teacher():
    stream = blob_stream()
    lwf = LwFPlugin(alpha=1.0)
    model = Growing().double()
    strategy = Naive(**settings(model), plugins=[lwf, REWCPlugin(1.0, layers="all")])
    for experience in stream.train_stream:
        strategy.train(experience)
        teacher = lwf.lwf.prev_model
        assert not any(is_rotated(m) for m in teacher.modules())
        for name, value in teacher.state_dict().items():
            torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_parameter_groups_and_frozen_state_survive():
    model = Growing().double()
    groups = [{"params": model.conv.parameters(), "lr": 1e-5}, {"params": model.norm.parameters(), "lr": 1e-5}]
    rest = [p for n, p in model.named_parameters() if not n.startswith(("conv", "norm"))]
    optimizer = torch.optim.SGD([*groups, {"params": rest, "lr": 1e-2}], momentum=0.9)
    model.norm.bias.requires_grad_(False)
    stream = blob_stream()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(model, optimizer))
    for experience in stream.train_stream:
        strategy.train(experience)
        assert [g["lr"] for g in optimizer.param_groups] == [1e-5, 1e-5, 1e-2]
        assert any(p is model.conv.weight for p in optimizer.param_groups[0]["params"])
        assert any(p is model.head.classifier.weight for p in optimizer.param_groups[2]["params"])
        assert not model.norm.bias.requires_grad
        assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(model.parameters()))
    assert "nothing: it is frozen" in strategy.rewc.summary()


def test_optimizer_state_is_kept_as_avalanche_keeps_it():
    """Adam: parameters that are not rotated keep their moments over experiences, rotated ones start anew."""
    model = Growing(first=6).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    strategy = REWC(ewc_lambda=1.0, layers=["body.0"], **settings(model, optimizer))
    steps = {}

    class Look:
        def before_training_epoch(self, strategy, **kwargs):
            for name, p in strategy.model.named_parameters():
                state = optimizer.state.get(p, {})
                steps.setdefault(name, []).append(int(state["step"]) if "step" in state else 0)

    strategy.plugins.append(Look())
    for experience in blob_stream(2).train_stream:
        strategy.train(experience)
    # 60 samples in batches of 8 are 8 steps an epoch, 2 epochs an experience.
    assert steps["body.0.weight"] == [0, 8, 0, 8]
    assert steps["body.0.bias"] == steps["body.2.weight"] == [0, 8, 16, 24]


def test_growing_head_keeps_old_rows_and_frees_new_ones():
    stream = blob_stream()
    model = Growing().double()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(model))
    strategy.train(stream.train_stream[0])
    memory = strategy.rewc.memories[-1]
    assert memory.importances["head.classifier.weight"].shape == (2, 8)
    seen = []

    class Look:
        def before_training_epoch(self, strategy, **kwargs):
            grown = strategy.rewc._training.memories[-1]
            seen.append((grown.importances["head.classifier.weight"], grown.rotations["head.classifier.weight"]))

    strategy.plugins.append(Look())
    strategy.train(stream.train_stream[1])
    importance, rotation = seen[0]
    assert importance.shape == (4, 8)
    torch.testing.assert_close(importance[:2], memory.importances["head.classifier.weight"])
    assert importance[2:].abs().max() == 0
    old = memory.rotations["head.classifier.weight"]
    torch.testing.assert_close(rotation.output_basis[0, :2, :2], old.output_basis[0])
    torch.testing.assert_close(rotation.output_basis[0, 2:, 2:], torch.eye(2).double())
    assert rotation.output_basis[0, 2:, :2].abs().max() == 0


def test_memory_does_not_grow_except_in_separate_mode():
    for options, expected in (({}, 1), ({"mode": "online", "decay_factor": 0.5}, 1), ({"mode": "separate"}, 3)):
        strategy = REWC(ewc_lambda=1.0, **settings(Growing().double()), **options)
        for experience in blob_stream().train_stream:
            strategy.train(experience)
        assert len(strategy.rewc.memories) == expected


@pytest.mark.parametrize("mode", [{}, {"mode": "separate"}, {"mode": "online", "decay_factor": 0.5}])
@pytest.mark.parametrize("space", ["rotated", "original"])
def test_normalised_the_penalty_does_not_depend_on_the_size_of_the_fisher(mode, space, monkeypatch):
    """A Fisher ten thousand times as large changes nothing; without `normalize` it would."""
    options = {"ewc_lambda": 3.0, "fisher": "exact", "space": space, **mode}
    before, _ = train(REWC, **options)
    raw, _ = train(REWC, normalize=False, **options)
    original = signals.exact_signals
    monkeypatch.setattr(signals, "exact_signals", lambda logits: 100 * original(logits))
    after, _ = train(REWC, **options)
    assert_same(before, after, 1e-9)
    with pytest.raises(AssertionError):
        assert_same(raw, train(REWC, normalize=False, **options)[0], 1e-9)


def test_normalised_the_size_of_an_earlier_fisher_does_not_decide_the_bases(monkeypatch):
    """Experiences weigh in the bases of online EWC as they do in its penalty."""
    original = signals.exact_signals
    bases = {}
    for normalize in (True, False):
        for size in (1, 100):
            options = {"ewc_lambda": 0.0, "mode": "online", "decay_factor": 0.5, "normalize": normalize}
            strategy = REWC(**options, **settings(Growing().double()))
            for experience in blob_stream().train_stream[:2]:
                torch.manual_seed(experience.current_experience)
                with monkeypatch.context() as patch:
                    if experience.current_experience == 0:
                        patch.setattr(signals, "exact_signals", lambda logits, size=size: size * original(logits))
                    strategy.train(experience)
            rotation = strategy.rewc.memories[-1].rotations["body.0.weight"]
            bases[normalize, size] = rotation.output_basis[0].abs()  # of eigenvectors the sign is free
    torch.testing.assert_close(bases[True, 1], bases[True, 100])
    assert (bases[False, 1] - bases[False, 100]).abs().max() > 0.01


def test_normalised_importances_sum_to_one_in_every_memory():
    strategy = REWC(ewc_lambda=1.0, mode="separate", **settings(Growing().double()))
    for experience in blob_stream().train_stream:
        strategy.train(experience)
    for memory in strategy.rewc.memories:
        assert memory.scale * sum(float(v.sum()) for v in memory.importances.values()) == pytest.approx(1)


def test_a_fisher_of_nothing_but_zeros_is_told(monkeypatch):
    monkeypatch.setattr(signals, "exact_signals", lambda logits: torch.zeros(1, *logits.shape, dtype=logits.dtype))
    strategy = REWC(ewc_lambda=1.0, fisher="exact", **settings(Growing().double()))
    with pytest.warns(RuntimeWarning, match="the Fisher is zero everywhere"):
        strategy.train(blob_stream().train_stream[0])
    assert strategy.rewc.memories[-1].scale == 1


def test_online_importances_are_a_decaying_sum():
    """With nothing rotated: decay · old + new, new rows of the head starting from nothing."""
    runs = {}
    for decay in (0.0, 0.5):
        torch.manual_seed(0)
        strategy = REWC(
            ewc_lambda=0.0,
            layers="none",
            fisher="exact",
            mode="online",
            decay_factor=decay,
            normalize=False,
            **settings(Growing().double()),
        )
        history = []
        for experience in blob_stream().train_stream:
            torch.manual_seed(1)
            strategy.train(experience)
            history.append(strategy.rewc.memories[-1].importances)
        runs[decay] = history
    single, summed = runs[0.0], runs[0.5]
    name = "head.classifier.weight"
    expected = 0.5 * torch.cat([summed[1][name], torch.zeros(2, 8).double()]) + single[2][name]
    torch.testing.assert_close(summed[2][name], expected)
    torch.testing.assert_close(
        summed[1]["body.0.weight"], 0.5 * summed[0]["body.0.weight"] + single[1]["body.0.weight"]
    )


def test_seed_decides_the_draws_and_nothing_else_does():
    def importances(seed, global_seed):
        torch.manual_seed(0)
        strategy = REWC(ewc_lambda=0.0, samples_per_class=3, seed=seed, **settings(Growing().double()))
        state = []

        class Disturb:
            def before_training_exp(self, strategy, **kwargs):
                torch.manual_seed(5)

            def after_training_epoch(self, strategy, **kwargs):
                torch.manual_seed(global_seed)
                state.append(torch.get_rng_state())

        strategy.plugins.insert(0, Disturb())
        strategy.train_epochs = 1
        strategy.train(blob_stream().train_stream[0])
        assert torch.equal(state[-1], torch.get_rng_state())  # the estimation has drawn nothing
        return strategy.rewc.memories[-1].importances["body.0.weight"]

    assert torch.equal(importances(1, 10), importances(1, 11))
    assert not torch.equal(importances(1, 10), importances(2, 10))
    assert torch.equal(importances(None, 10), importances(None, 10))


def test_summary_names_every_parameter_once():
    strategy = REWC(ewc_lambda=1.0, **settings(Growing().double()))
    assert "not learned" in strategy.rewc.summary()
    strategy.train(blob_stream().train_stream[0])
    lines = strategy.rewc.summary().splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == [n for n, _ in strategy.model.named_parameters()]
    assert "rotated" in next(line for line in lines if line.startswith("conv.weight"))
    assert "rotated" not in next(line for line in lines if line.startswith("head.classifier.weight"))


def test_a_head_that_evaluation_replaced_is_not_trained_in_vain():
    """Avalanche grows heads in evaluation too, without telling the optimizer: fatal in the middle of training."""
    stream = blob_stream()
    strategy = REWC(ewc_lambda=1.0, **settings(Growing().double()))
    strategy.train(stream.train_stream[0])

    class EvaluateAhead:
        def after_update(self, strategy, **kwargs):
            strategy.eval(stream.test_stream)

    strategy.plugins.append(EvaluateAhead())
    with pytest.raises(RuntimeError, match=r"replaced the weights of a growing head.*eval_every"):
        strategy.train(stream.train_stream[1])


def test_a_model_that_is_itself_a_layer():
    stream = blob_stream(2)
    model = nn.Linear(5, 6).double()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(model))
    for experience in stream.train_stream:
        strategy.train(experience)
    assert set(strategy.rewc.memories[-1].rotations) == {"weight"}


def test_caller_s_plugin_list_is_not_changed():
    mine = []
    REWC(ewc_lambda=1.0, **settings(Growing()), plugins=mine)
    assert mine == []


def test_a_stopped_training_is_taken_up_again():
    """An exception in the middle of training leaves a model that can be evaluated, saved and trained on."""
    stream = blob_stream()
    strategy = REWC(ewc_lambda=1.0, layers="all", **settings(Growing().double()))
    strategy.train(stream.train_stream[0])

    class Stop:
        armed = True

        def after_update(self, strategy, **kwargs):
            if self.armed:
                raise KeyboardInterrupt

    stop = Stop()
    strategy.plugins.append(stop)
    with pytest.raises(KeyboardInterrupt):
        strategy.train(stream.train_stream[1])
    stop.armed = False
    plain = copy.deepcopy(strategy.model)
    assert not any(is_rotated(m) for m in plain.modules())
    strategy.eval(stream.test_stream)
    strategy.train(stream.train_stream[1])
    assert not any(is_rotated(m) for m in strategy.model.modules())
    assert isinstance(strategy.model.body[0], nn.Linear)
