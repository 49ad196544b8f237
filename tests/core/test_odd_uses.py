"""Layers used in ways their types do not tell: the plan finds out, and the numbers are the oracle's all the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from avalanche_rewc.core import BASES, ProtectedTraining, consolidate, is_rotated, rotate_layer
from avalanche_rewc.core.plan import make_plan
from avalanche_rewc.core.reparametrize import _STATE
from tests import oracle
from tests.core.test_reparametrize import random_rotation


class Body(nn.Module):
    """Three layers; subclasses say how they are used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.aux, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.double()


class Auxiliary(Body):
    """A layer that is called but whose output goes nowhere."""

    def forward(self, x):
        x = torch.relu(self.body(x))
        self.seen = self.aux(x)
        return self.head(x)


class WithoutGradient(Body):
    """A layer under no_grad, as frozen backbones are."""

    def forward(self, x):
        with torch.no_grad():
            x = torch.relu(self.body(x))
        return self.head(torch.relu(self.aux(x)))


class VectorInput(Body):
    """A Linear that is applied to a parameter, without any batch dimension."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.randn(6).double())

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) + self.aux(self.vector)))


class Keywords(Body):
    class Named(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    def __init__(self):
        super().__init__()
        self.aux = self.Named(6, 6).double()

    def forward(self, x):
        return self.head(input=torch.tanh(self.aux(x=self.body(input=x))))


class OwnNorm(Body):
    """A norm of channels first that inherits from LayerNorm, as ConvNeXt's does."""

    class ChannelNorm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    def __init__(self):
        super().__init__()
        self.norm = self.ChannelNorm(3).double()

    def forward(self, x):
        x = torch.tanh(self.body(x)).reshape(len(x), 3, 2)
        return self.head((self.norm(x) * x).flatten(1))


class OwnPadding(nn.Module):
    """A convolution that pads in its own forward."""

    class Same(nn.Conv1d):
        def forward(self, x):
            return super().forward(F.pad(x, (1, 1)))

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = self.Same(1, 4, 3), nn.Linear(24, 3)
        self.double()

    def forward(self, x):
        return self.head(torch.tanh(self.conv(x.unsqueeze(1))).flatten(1))


class Unbatched(nn.Module):
    """A convolution over one picture at a time, as torch allows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(1, 4, 2), nn.Linear(4, 3)
        self.double()

    def forward(self, x):
        return self.head(torch.stack([torch.tanh(self.conv(one.reshape(1, 2, 3))).mean((1, 2)) for one in x]))


class Gated(Body):
    """Every sample goes on with what one of two layers made of it; alone, it has no use for the other one."""

    def forward(self, x):
        both = self.body(x), self.aux(x)
        return self.head(torch.tanh(torch.stack([both[int(one[1] > 0)][i] for i, one in enumerate(x)])))


ODD = {
    Auxiliary: {"body", "head"},
    WithoutGradient: {"aux", "head"},
    VectorInput: {"body", "head"},
    Keywords: {"body", "aux", "head"},
    OwnNorm: {"body", "aux", "head"} - {"aux"},
    OwnPadding: {"head"},
    Unbatched: {"conv", "head"},
    Gated: {"body", "aux", "head"},
}


@pytest.mark.filterwarnings("ignore:per-sample gradients of")
@pytest.mark.parametrize("kind", ODD)
def test_odd_uses_give_the_oracle_s_numbers(kind):
    model = kind().eval()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).double()
    memory = consolidate(model, lambda: [((x[:3],), None), ((x[3:],), None)], layers="all", fisher="exact")
    assert {name.removesuffix(".weight") for name in memory.rotations} == ODD[kind]
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    for name, importance in memory.importances.items():
        torch.testing.assert_close(importance, expected[name], rtol=1e-6, atol=1e-12)
    before = model(x)
    training = ProtectedTraining(model, [memory], 1.0, batch_size=2)
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
    training.end()
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)


def test_a_layer_that_some_samples_pass_by_takes_the_fast_way_all_the_same():
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).double()
    assert make_plan(Gated().eval(), (x,), "all").general == []


def test_notes_say_why():
    x = torch.randn(5, 6).double()
    notes = {e.parameter: e.note for e in make_plan(Auxiliary().eval(), (x,), "all").entries}
    assert "no part in the outputs" in notes["aux.weight"]
    notes = {e.parameter: e.note for e in make_plan(VectorInput().eval(), (x,), "all").entries}
    assert "not, or not only, used as" in notes["aux.weight"]


def test_the_last_layer_is_the_one_called_last_frozen_or_not():
    model = Auxiliary().eval()
    model.head.requires_grad_(False)
    x = torch.randn(5, 6).double()
    assert set(make_plan(model, (x,), "all_but_last").rotated) == {"body"}

    class Backwards(Body):
        def forward(self, x):
            return self.body(torch.relu(self.head_first(x)))

        def __init__(self):
            super().__init__()
            self.body, self.head_first = nn.Linear(6, 3).double(), nn.Linear(6, 6).double()

    assert "body" not in make_plan(Backwards().eval(), (x,), "all_but_last").rotated


def test_a_shared_layer_may_be_named_by_any_of_its_names():
    from tests.cases import CASES

    model, x = CASES["shared"].model(), CASES["shared"].inputs()
    assert set(make_plan(model, (x,), ["again"]).rotated) == {"first"}


def test_masked_with_minus_infinity():
    class Masked(Body):
        def forward(self, x):
            return self.head(torch.relu(self.body(x))).masked_fill(torch.tensor([False, False, True]), -torch.inf)

    model = Masked().eval()
    x = torch.randn(5, 6).double()
    memory = consolidate(model, lambda: [((x,), None)], fisher="exact")
    assert memory.importances["head.weight"][2].abs().max() == 0
    assert memory.importances["head.weight"][:2].abs().max() > 0
    assert all(torch.isfinite(value).all() for value in memory.importances.values())


def test_a_diverged_model_is_called_that():
    model = Body()
    model.forward = lambda x: model.head(model.body(x)) * float("nan")
    with pytest.raises(RuntimeError, match=r"not finite on the first batch.*diverged"):
        consolidate(model, lambda: [((torch.randn(5, 6).double(),), None)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, b: consolidate(m, b, fisher="exat"), "did you mean 'exact'"),
        (lambda m, b: consolidate(m, b, conv_basis="pach"), "did you mean 'patch'"),
        (lambda m, b: consolidate(m, b, layers="al"), "did you mean 'all'"),
        (lambda m, b: consolidate(m, b, layers=5), "layers=5"),
        (lambda m, b: consolidate(m, b, decay=5), "decay=5 must be a number between 0 and 1"),
        (lambda m, b: ProtectedTraining(m, [consolidate(m, b)], 1.0, space="rotatd"), "did you mean 'rotated'"),
        (lambda m, b: ProtectedTraining(m, [consolidate(m, b)], float("nan")), "ewc_lambda=nan"),
        (lambda m, b: ProtectedTraining(m, [], 1.0), "nothing to protect"),
    ],
)
def test_the_core_checks_its_options(make, message):
    x = torch.randn(5, 6).double()
    with pytest.raises(ValueError, match=message):
        make(Auxiliary().eval(), lambda: [((x,), None)])


def test_a_training_that_has_ended():
    model = Auxiliary().eval()
    x = torch.randn(5, 6).double()
    training = ProtectedTraining(model, [consolidate(model, lambda: [((x,), None)])], 1.0)
    training.pause()
    with pytest.raises(RuntimeError, match="paused"):
        training.penalty()
    training.resume()
    assert training.penalty().item() == pytest.approx(0.0, abs=1e-20)
    training.end()
    training.resume()
    assert not is_rotated(model.body)
    with pytest.raises(RuntimeError, match="has ended"):
        training.penalty()


def test_the_optimizer_s_momentum_comes_back_with_the_weights():
    model = Auxiliary().eval()
    x = torch.randn(5, 6).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(x).square().sum().backward()
    optimizer.step()
    momentum = optimizer.state[model.body.weight]["momentum_buffer"].clone()
    memory = consolidate(model, lambda: [((x,), None)])
    training = ProtectedTraining(model, [memory], 1.0, optimizer=optimizer)
    assert not torch.allclose(optimizer.state[model.body._parameters["weight"]]["momentum_buffer"], momentum)
    training.end()
    torch.testing.assert_close(optimizer.state[model.body.weight]["momentum_buffer"], momentum)


def test_each_side_goes_where_fewer_numbers_are():
    """Linear 50 → 20: the input side has 20 rows of weights, the output side 50 columns."""
    model = nn.Sequential(nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 3))
    x = torch.randn(64, 50)
    memory = consolidate(model, lambda: [((x,), None)], layers=["0"])
    for batch, expected in ((10, (True, True)), (30, (False, True)), (60, (False, False))):
        training = ProtectedTraining(model, [memory], 1.0, batch_size=batch)
        state = model[0].__dict__[_STATE]
        assert (state.input_kernel is not None, state.output_kernel is not None) == expected
        training.end()


@pytest.mark.parametrize("layout", ["tokens", "tokens first", "folded", "repeated"])
def test_rows_are_counted_whatever_the_layout(layout):
    class Tokens(Body):
        def forward(self, x):  # (B, 6) as 4 tokens of 6
            x = torch.stack([x, x + 1, x + 2, x + 3], 1)
            if layout == "tokens first":
                x = self.body(x.transpose(0, 1)).transpose(0, 1)
            elif layout == "folded":
                x = self.body(x.flatten(0, 1)).unflatten(0, (-1, 4))
            elif layout == "repeated":
                x = torch.stack([self.body(x[:, i]) for i in range(4)], 1)
            else:
                x = self.body(x)
            return self.head(torch.tanh(x).sum(1))

    x = torch.randn(7, 6).double()
    memory = consolidate(Tokens().eval(), lambda: [((x,), None)], layers=["body"])
    assert memory.positions["body.weight"] == ((1.0, 1.0) if layout == "repeated" else (4.0, 4.0))


def test_a_rotated_layer_in_functional_use_and_misuse():
    layer = nn.Linear(4, 3).double()
    x = torch.randn(2, 4).double()
    before = layer(x)
    rotate_layer(layer, random_rotation(layer), rows=(0.0, 0.0))
    same = functional_call(layer, dict(layer.named_parameters()), (x,))
    torch.testing.assert_close(same, before)
    with pytest.raises(RuntimeError, match="cannot be replaced"):
        layer.weight = nn.Parameter(torch.zeros(3, 4).double())
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict({"weight": torch.zeros(2, 4), "bias": torch.zeros(3)})


def test_the_forms_of_the_authors_and_of_the_printed_formula():
    a, g = (torch.randn(1, 5, 5, generator=torch.Generator().manual_seed(s)).double() for s in (0, 1))
    a, g = a @ a.mT, g @ g.mT
    u1, u2 = BASES["eigen"](a, g)
    eigenvalues = (u1.mT @ a @ u1).diagonal(dim1=-2, dim2=-1)
    assert (eigenvalues.diff() <= 0).all()  # the largest first, as in a singular value decomposition
    assert [torch.equal(p, q) for p, q in zip(BASES["authors"](a, g), (u1, u2.mT), strict=True)] == [True, True]
    assert [torch.equal(p, q) for p, q in zip(BASES["printed"](a, g), (u1.mT, u2), strict=True)] == [True, True]
    eye = torch.eye(5).double().unsqueeze(0)
    assert [torch.equal(p, q) for p, q in zip(BASES["output_only"](a, g), (eye, u2), strict=True)] == [True, True]
    assert [torch.equal(p, q) for p, q in zip(BASES["input_only"](a, g), (u1, eye), strict=True)] == [True, True]
