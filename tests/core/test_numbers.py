"""Numbers at the edge of float32: importances stay finite and non-negative, bases orthogonal to 1e-6."""

import copy

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from avalanche_rewc.core import ProtectedTraining, consolidate
from tests.tally import tally

WIDE = 24


def mlp():
    return nn.Sequential(nn.Linear(WIDE, 12), nn.ReLU(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def convolution():
    return nn.Sequential(
        nn.Unflatten(1, (2, 12)),
        nn.Conv1d(2, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(60, 5),
        nn.Tanh(),
        nn.Linear(5, 4),
    )


def tokens():
    return nn.Sequential(
        nn.Unflatten(1, (4, 6)), nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Flatten(), nn.Linear(20, 4)
    )


MODELS = {"mlp": mlp, "convolution": convolution, "tokens": tokens}

INPUTS = {
    "normal": lambda n, g: torch.randn(n, WIDE, generator=g),
    "zero": lambda n, g: torch.zeros(n, WIDE),
    "constant": lambda n, g: torch.full((n, WIDE), 3.0),
    "duplicates": lambda n, g: torch.randn(1, WIDE, generator=g).repeat(n, 1),
    "rank two": lambda n, g: torch.randn(n, 2, generator=g) @ torch.randn(2, WIDE, generator=g),
    "nearly repeated eigenvalues": lambda n, g: torch.eye(WIDE)[:n] * (1 + 1e-7 * torch.randn(n, 1, generator=g)),
    "huge": lambda n, g: 1e20 * torch.randn(n, WIDE, generator=g),
    "one huge sample": lambda n, g: torch.randn(n, WIDE, generator=g) * torch.tensor([1e20] + [1.0] * (n - 1))[:, None],
    "one huge feature": lambda n, g: torch.randn(n, WIDE, generator=g) * torch.tensor([1e20] + [1.0] * (WIDE - 1)),
    "tiny": lambda n, g: 1e-30 * torch.randn(n, WIDE, generator=g),
}


def linears(model):
    return [m for m in model if isinstance(m, nn.Linear | nn.Conv1d)]


def dead(model):
    with torch.no_grad():
        linears(model)[0].weight.zero_()
        linears(model)[0].bias.fill_(-1.0)


def saturated(model):
    with torch.no_grad():
        linears(model)[-1].weight.mul_(1e6)


def constant_answer(model):
    with torch.no_grad():
        linears(model)[-1].weight.zero_()


STATES = {"new": lambda model: None, "dead": dead, "saturated": saturated, "constant answer": constant_answer}


def largest_error(basis):
    product = basis.double().mT @ basis.double()
    return float((product - torch.eye(basis.shape[-1])).abs().max())


def check(memory):
    for name, importance in memory.importances.items():
        assert torch.isfinite(importance).all(), name
        assert (importance >= 0).all(), name
        assert torch.isfinite(memory.anchors[name]).all(), name
    for name, rotation in memory.rotations.items():
        assert max(largest_error(rotation.input_basis), largest_error(rotation.output_basis)) < 1e-6, name


def too_large(model, x, y, **options):
    """Whether the Fisher itself, found in float64, is more than float32 can hold."""
    generator = torch.Generator().manual_seed(0)
    double = copy.deepcopy(model).double()
    memory = consolidate(double, lambda: [((x.double(),), y)], generator=generator, **options)
    return max(float(f.sum()) for f in memory.importances.values()) * len(x) > torch.finfo(torch.float32).max


def each_input(test):
    """Random draws may leave a kind of input out for long."""
    for name in INPUTS:
        test = example("mlp", name, "new", 5, "exact", "channel", 0)(test)
    return example("mlp", "one huge sample", "saturated", 5, "empirical", "channel", 0)(test)


def test_at_the_edge():
    with tally("inputs at the edge of float32") as counts:

        @given(
            st.sampled_from(sorted(MODELS)),
            st.sampled_from(sorted(INPUTS)),
            st.sampled_from(sorted(STATES)),
            st.integers(2, 12),
            st.sampled_from(["exact", "sampled", "empirical"]),
            st.sampled_from(["channel", "patch"]),
            st.integers(0, 5),
        )
        @each_input
        def run(kind, inputs, state, samples, fisher, conv_basis, seed):
            torch.manual_seed(seed)
            model = MODELS[kind]()
            STATES[state](model)
            generator = torch.Generator().manual_seed(seed)
            x, y = INPUTS[inputs](samples, generator), torch.arange(samples) % 4
            counts.add(inputs)
            options = {"layers": "all", "fisher": fisher, "conv_basis": conv_basis}
            if too_large(model, x, y, **options):
                with pytest.raises(RuntimeError, match=r"the Fisher of \S+ is not finite.*scale the inputs"):
                    consolidate(model, lambda: [((x,), y)], generator=generator, **options)
                return
            memory = consolidate(model, lambda: [((x,), y)], generator=generator, **options)
            check(memory)
            online = consolidate(model, lambda: [((x,), y)], earlier=memory, decay=0.9, generator=generator, **options)
            check(online)
            before = model(x).detach()
            training = ProtectedTraining(model, [memory, online], 1.0, batch_size=2)
            scale = max(1.0, float(before.abs().max()))
            assert torch.isfinite(training.penalty())
            if "huge" not in inputs:  # tanh of 1e20 times a rounding error is anything
                assert (model(x) - before).abs().max() <= 1e-4 * scale
            training.end()

        run()


def test_the_fisher_of_huge_activations_is_the_right_one():
    """Activations of 1e20 with gradients of 1e-20: neither square fits into float32, their product does."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.head = nn.Linear(WIDE, 6), nn.Linear(6, 4)

        def forward(self, x):
            return self.head(torch.tanh(self.first(x) * 1e-20))

    x = 1e20 * torch.randn(9, WIDE)
    importances = [
        consolidate(model, lambda x=x: [((x,), None)], layers="none", fisher="exact").importances["first.weight"]
        for model, x in ((Scaled(), x), (Scaled().double(), x.double()))
    ]
    assert importances[0].max() > 1e-3
    torch.testing.assert_close(importances[0].double(), importances[1], rtol=1e-4, atol=1e-6)


def test_a_fisher_that_float32_cannot_hold_is_named():
    model = nn.Linear(WIDE, 4)
    with torch.no_grad():
        model.weight.mul_(1e-21)
    x = 1e20 * torch.randn(9, WIDE)
    with pytest.raises(RuntimeError, match=r"the Fisher of weight is not finite.*scale the inputs"):
        consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact")


@pytest.mark.parametrize("size", [64, 300])
def test_orthogonal_at_every_size(size):
    """From few samples, and from eigenvalues that hardly differ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 3))
    for x in (torch.randn(5, size), torch.eye(size) + 1e-7 * torch.randn(size, size), 1e20 * torch.randn(5, size)):
        check(consolidate(model, lambda x=x: [((x,), None)], layers="all"))


class Poison(torch.autograd.Function):
    """The identity, whose gradient is not finite for one sample."""

    @staticmethod
    def forward(x, marked, value):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, marked, ctx.value = inputs
        ctx.save_for_backward(marked)

    @staticmethod
    def backward(ctx, gradient):
        (marked,) = ctx.saved_tensors
        return torch.where(marked, torch.full_like(gradient, ctx.value), gradient), None, None


class Poisoned(nn.Module):
    """Samples whose first feature is above 100 have a gradient that is not finite, below or in the middle layer."""

    def __init__(self, value, free):
        super().__init__()
        torch.manual_seed(0)
        self.value, self.free = value, nn.Parameter(torch.ones(6)) if free else None
        self.first, self.middle, self.head = nn.Linear(WIDE, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        if self.free is not None:
            y = y * self.free
        y = Poison.apply(y, x[:, :1] > 100, self.value)
        return self.head(torch.tanh(self.middle(y)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("layers", ["all", "none", ["middle"]])
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.filterwarnings("ignore:per-sample gradients of")
def test_one_sample_whose_gradient_is_not_finite(value, layers, free):
    model = Poisoned(value, free)
    x = torch.randn(40, WIDE)
    x[33, 0] = 200.0
    with pytest.raises(RuntimeError, match=r"Fisher of (first\.weight|free) is not finite: .* NaN or overflow on some"):
        consolidate(model, lambda: [((x[:20],), None), ((x[20:],), None)], layers=layers, fisher="exact")
    check(consolidate(model, lambda: [((x[:20],), None)], layers=layers, fisher="exact"))


def test_a_parameter_that_is_not_finite_is_no_anchor():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.used, self.idle = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(torch.tanh(self.body(x)))

    model = TwoHeads()
    with torch.no_grad():
        model.idle.weight[1, 2] = float("nan")
    with pytest.raises(RuntimeError, match=r"parameter idle\.weight is not finite, so it can be no anchor"):
        consolidate(model, lambda: [((torch.randn(6, 5),), None)])
