"""Random architectures in real strategies: three experiences, a growing head, every option; and what is refused."""

import copy
import pickle
import warnings

import pytest
import torch
from avalanche.models import IncrementalClassifier
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from avalanche_rewc import REWC
from avalanche_rewc.core import ProtectedTraining, consolidate, is_rotated
from avalanche_rewc.core.selection import rotatable_layers
from avalanche_rewc.options import UNORDERED_BASES
from tests.architectures import WIDTH, build, recipes, with_everything
from tests.tally import tally
from tests.toy import Growing, blob_stream, settings

CHOICES = {
    "layers": ["all", "all", "all_but_last", "none"],
    "space": ["rotated", "rotated", "original"],
    "fisher": ["exact", "sampled", "empirical"],
    "conv_basis": ["channel", "patch"],
    "basis": ["eigen", "eigen", "authors", "random", "printed"],
    "mode": ["last", "separate", "online"],
    "rank": [2, None, 1, 3],
    "normalize": [True, True, False],
}
IN_TURN = [{name: values[(i + j) % len(values)] for j, (name, values) in enumerate(CHOICES.items())} for i in range(60)]
OPTIONS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})
WRAPPERS = {"plain": lambda model: model, "DataParallel": nn.DataParallel}


class Look:
    """At the penalty of every experience's last step, and at the model in evaluations between steps."""

    def __init__(self, classes):
        self.penalties, self.classes = [], classes

    def after_training_epoch(self, strategy, **kwargs):
        training = strategy.rewc._training
        self.penalties.append(None if training is None else training.penalty().item())

    def before_eval_exp(self, strategy, **kwargs):
        assert [type(m) for m in strategy.model.modules()] == self.classes


def refused(model, layers):
    """Everything that the choice names is frozen or parametrized; the head comes last and always trains."""
    return layers == "all_but_last" and len(rotatable_layers(model, trainable=True)) < 2


@pytest.mark.filterwarnings("ignore:per-sample gradients of")
def test_three_experiences_of_random_architectures():
    with tally("random architectures trained on three experiences") as counts:

        @with_everything(IN_TURN, sorted(WRAPPERS), [False, True, True])
        @given(recipes(), OPTIONS, st.sampled_from(sorted(WRAPPERS)), st.booleans())
        def run(recipe, options, wrapper, adam):
            torch.manual_seed(0)
            head = IncrementalClassifier(WIDTH, initial_out_features=2)
            inner = build(recipe, torch.float32, head)
            model = WRAPPERS[wrapper](inner)
            names = {name for name, parameter in inner.named_parameters() if parameter.requires_grad}
            keys, classes = list(model.state_dict()), [type(m) for m in model.modules()]
            stream = blob_stream(3, per_class=4, shape=recipe.shape, dtype=torch.float32)
            optimizer = torch.optim.Adam(model.parameters(), 1e-3) if adam else None
            look = Look(classes)
            common = settings(model, optimizer, train_epochs=1, eval_every=1)
            if options["mode"] == "online":
                options = {**options, "decay_factor": 0.5}
            if options["basis"] in UNORDERED_BASES:
                options = {**options, "rank": None}
            strategy = REWC(ewc_lambda=5.0, samples_per_class=3, plugins=[look], **common, **options)
            counts.add(recipe.kind)
            if refused(inner, options["layers"]):
                with pytest.raises(ValueError, match="leaves no layer to rotate"):
                    strategy.train(stream.train_stream[0])
                assert not look.penalties
                return
            for experience in stream.train_stream:
                strategy.train(experience, eval_streams=[stream.test_stream])
                assert [type(m) for m in model.modules()] == classes
                assert list(model.state_dict()) == keys
                assert all(torch.isfinite(p).all() for p in model.parameters())
                memory = strategy.rewc.memories[-1]
                assert set(memory.importances) == names  # without any wrapper's prefix
                assert all((f >= 0).all() and torch.isfinite(f).all() for f in memory.importances.values())
                x = stream.test_stream[0].dataset[0][0].unsqueeze(0)
                again = build(recipe, torch.float32, copy.deepcopy(head))
                again.load_state_dict(inner.state_dict())
                assert torch.equal(again(x), inner.eval()(x))
                assert torch.equal(copy.deepcopy(model).eval()(x), model.eval()(x))
            assert look.penalties[0] is None
            assert all(penalty > 0 for penalty in look.penalties[1:])
            assert len(strategy.rewc.memories) == (3 if options["mode"] == "separate" else 1)

        run()


def test_a_model_compiled_after_its_first_experience_is_still_protected():
    stream = blob_stream(3, dtype=torch.float32)
    model = Growing(first=6)
    strategy = REWC(ewc_lambda=10.0, layers="all", **settings(model, train_epochs=1))
    strategy.train(stream.train_stream[0])
    strategy.model = torch.compile(model, backend="eager")
    seen = []

    class Penalty:
        def after_update(self, strategy, **kwargs):
            seen.append(strategy.rewc._training.penalty().item())

    strategy.plugins.append(Penalty())
    strategy.train(stream.train_stream[1])
    strategy.eval(stream.test_stream)
    assert min(seen) > 0
    assert not any(map(is_rotated, model.modules()))
    assert {name.split(".")[0] for name in strategy.rewc.memories[-1].importances} == {"conv", "norm", "body", "head"}


@pytest.mark.parametrize("change", ["double", "half"])
def test_a_model_that_changes_its_precision_between_experiences(change):
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    x = torch.randn(9, 5)
    memory = consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    getattr(model, change)()
    x = getattr(x, change)()
    model(x).square().sum().backward()
    optimizer.step()
    before = model(x).detach()
    training = ProtectedTraining(model, [memory], 10.0, optimizer=optimizer, batch_size=4)
    torch.testing.assert_close(model(x), before, rtol=1e-2, atol=1e-2)
    assert training.penalty() > 0
    training.end()
    torch.testing.assert_close(model(x), before, rtol=1e-2, atol=1e-2)


def test_parameters_with_a_new_name_are_missed_aloud():
    """Not a penalty that is silently zero."""
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    memory = consolidate(model, lambda: [((torch.randn(9, 5),), None)])
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.warns(RuntimeWarning, match=r"0\.weight: remembered, and not in the model any more.*another name"):
        ProtectedTraining(model, [memory], 1.0).end()


class Base(Growing):
    """Growing with something of its own in front of the head."""

    def __init__(self, extra=None):
        super().__init__(first=6)
        self.extra = extra or nn.Identity()

    def forward(self, x):
        return self.head(self.between(self.body(torch.relu(self.norm(self.conv(x.unsqueeze(1)))).flatten(1))))

    def between(self, x):
        return self.extra(x)


class Complex(Base):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def between(self, x):
        return (x * self.phase).real


class Empty(Base):
    def __init__(self):
        super().__init__()
        self.none = nn.Linear(8, 0)

    def between(self, x):
        return x + self.none(x).sum(-1, keepdim=True)


class Noisy(Base):
    def between(self, x):
        return F.dropout(x)


class Centred(Base):
    def between(self, x):
        return x - x.mean(0) * 0.5


class Pair(Base):
    def forward(self, x):
        logits = super().forward(x)
        return logits if self.training else (logits, x)


class FixedBatch(Base):
    def between(self, x):
        return x.reshape(3 if len(x) in (1, 3) else len(x), 8)


REFUSED = {
    "batch statistics": (
        lambda: Base(nn.BatchNorm1d(8, track_running_stats=False)),
        r"module 'extra' \(BatchNorm1d\).*track_running_stats=True",
    ),
    "complex": (Complex, r"parameter phase is torch.complex64.*view_as_real"),
    "noise": (Noisy, r"at random in eval mode.*training=self\.training"),
    "mixed samples": (Centred, "change with the other samples"),
    "two outputs": (Pair, r"must return logits.*not tuple"),
    "fixed batch": (FixedBatch, "fails on a batch of one sample"),
    "empty": (Empty, r"parameter none\.weight of shape \(0, 8\) has no elements"),
    "uninitialised": (lambda: Base(nn.Sequential(nn.LazyLinear(8))), r"parameter extra\.0\.\w+ has no shape yet"),
}


class Steps:
    taken = 0

    def before_training_iteration(self, strategy, **kwargs):
        self.taken += 1


def test_what_is_not_supported_is_refused_before_the_first_step():
    with tally("unsupported models") as counts:
        for name, (make, message) in REFUSED.items():
            counts.add(name)
            model, steps = make(), Steps()
            known = {
                n: p for n, p in model.named_parameters() if not isinstance(p, nn.parameter.UninitializedParameter)
            }
            before = {n: p.detach().clone() for n, p in known.items()}
            state = torch.get_rng_state()
            common = settings(model, torch.optim.SGD(known.values(), lr=0.1))
            strategy = REWC(ewc_lambda=1.0, **common, plugins=[steps])
            with pytest.raises(RuntimeError, match=message):
                strategy.train(blob_stream(dtype=torch.float32).train_stream[0])
            assert not steps.taken, name
            assert all(torch.equal(before[n], p) for n, p in model.named_parameters() if n in before), name
            assert torch.equal(torch.get_rng_state(), state), name


def test_many_devices_are_refused_in_rotated_space():
    model = nn.DataParallel(Growing())
    model.device_ids = [0, 1]
    strategy = REWC(ewc_lambda=1.0, **settings(model))
    with pytest.raises(ValueError, match=r'DataParallel over 2 devices.*space="original"'):
        strategy.train(blob_stream(dtype=torch.float32).train_stream[0])


def test_a_basis_that_is_not_orthogonal_is_refused():
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4))
    with pytest.raises(ValueError, match=r"for 0\.weight it returned an input basis that is not orthogonal"):
        consolidate(model, lambda: [((torch.randn(9, 5),), None)], basis=lambda a, g: (a, g))


def test_a_sparse_embedding():
    """Its gradients are sparse, also one sample at a time."""
    model = nn.Sequential(nn.EmbeddingBag(7, 5, sparse=True, mode="sum"), nn.Linear(5, 3))
    x = torch.randint(0, 7, (6, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact")
    assert torch.isfinite(memory.importances["0.weight"]).all()
    assert pickle.dumps(model)
