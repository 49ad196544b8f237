"""Random architectures: the oracle's Fisher, and a rotation that nobody but the optimizer can see."""

import copy
import pickle
import warnings

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from avalanche_rewc import core
from avalanche_rewc.core import ProtectedTraining, consolidate, is_rotated
from avalanche_rewc.core.selection import rotatable_layers
from avalanche_rewc.core.wrappers import unwrapped
from tests import oracle
from tests.architectures import Recipe, build, recipes, tolerance, with_everything
from tests.tally import SOAK, tally


@pytest.fixture(autouse=True)
def _slow_ways_are_fine():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "per-sample gradients of", RuntimeWarning)
        yield


def remember(model, x, **options):
    """A memory of the model; layers="none" where everything that could be rotated is frozen or parametrized."""
    layers = "all" if rotatable_layers(unwrapped(model), trainable=True) else "none"
    return consolidate(model, lambda: [((x[:3],), None), ((x[3:],), None)], layers=layers, **options)


def check_memory(memory, model):
    assert set(memory.importances) == {n for n, p in model.named_parameters() if p.requires_grad}
    for importance in memory.importances.values():
        assert torch.isfinite(importance).all()
        assert (importance >= 0).all()
    for rotation in memory.rotations.values():
        for basis in (rotation.input_basis, rotation.output_basis):
            assert (basis.mT @ basis - torch.eye(basis.shape[-1])).abs().max() < 1e-6


def test_fisher_of_random_architectures():
    with tally("random architectures against the oracle") as counts:

        @with_everything(mixed=False)
        @given(recipes(mixed=False))
        def run(recipe):
            model, x = build(recipe), recipe.inputs()
            counts.add(recipe.kind)
            for basis in ("channel", "patch") if recipe.named("conv") else ("channel",):
                memory = remember(model, x, fisher="exact", conv_basis=basis)
                check_memory(memory, model)
                expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
                for name, importance in memory.importances.items():
                    scale = tolerance(recipe) * float(expected[name].abs().max()) + 1e-15
                    torch.testing.assert_close(importance, expected[name], rtol=tolerance(recipe), atol=scale, msg=name)

        run()


PRODUCTS = pytest.mark.parametrize("small", [0, core.rotation.SMALL], ids=["two products", "one product"])
"""The layers are small; both ways to rotate them are meant."""


@PRODUCTS
def test_rotation_of_random_architectures(small, monkeypatch):
    monkeypatch.setattr(core.rotation, "SMALL", small)
    with tally("random architectures rotated") as counts:

        @with_everything()
        @given(recipes())
        def run(recipe):
            model, x = build(recipe), recipe.inputs()
            counts.add(recipe.kind)
            memory = remember(model, x, fisher="exact")
            check_memory(memory, model)
            plain, before = copy.deepcopy(model), model(x).detach()
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
            training = ProtectedTraining(model, [memory], 10.0, optimizer=optimizer, batch_size=recipe.seed * 4)

            def same(other):
                assert [type(m) for m in other.modules()] == [type(m) for m in plain.modules()]
                assert list(other.state_dict()) == list(plain.state_dict())
                torch.testing.assert_close(other(x), before, rtol=1e-8, atol=1e-8)

            torch.testing.assert_close(model(x), before, rtol=1e-8, atol=1e-8)
            torch.testing.assert_close(nn.DataParallel(model)(x), before, rtol=1e-8, atol=1e-8)
            assert sum(map(is_rotated, model.modules())) == len(memory.rotations)
            same(copy.deepcopy(model))
            if not any(map(is_parametrized, model.modules())):  # which torch refuses to pickle
                same(pickle.loads(pickle.dumps(model)))
            saved = {name: value.clone() for name, value in model.state_dict().items()}
            for name, value in plain.state_dict().items():
                torch.testing.assert_close(saved[name], value, rtol=1e-8, atol=1e-8, msg=name)
            # One step away and back again by load_state_dict.
            assert training.penalty().item() == pytest.approx(0.0, abs=1e-15)
            (model(x).square().sum() + training.penalty()).backward()
            optimizer.step()
            assert torch.isfinite(training.penalty())
            model.load_state_dict(saved)
            torch.testing.assert_close(model(x), before, rtol=1e-8, atol=1e-8)
            training.pause()
            same(model)
            training.resume()
            training.end()
            same(model)

        run()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@PRODUCTS
def test_precisions(dtype, small, monkeypatch):
    """Parameters of 16 bits are rotated and remembered as well as 16 bits can hold them."""
    monkeypatch.setattr(core.rotation, "SMALL", small)
    error = {torch.float32: 1e-5, torch.bfloat16: 0.15, torch.float16: 0.02}[dtype]
    trace_error = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}[dtype]
    name = str(dtype).removeprefix("torch.")
    with tally(f"random architectures in {name}") as counts, torch.backends.mkldnn.flags(enabled=False):

        @with_everything()
        @given(recipes())
        def run(recipe):
            model, x = build(recipe, dtype), recipe.inputs(dtype=dtype)
            counts.add(recipe.kind)
            memory = remember(model, x, fisher="exact")
            check_memory(memory, model)
            # The trace does not depend on the basis, and in float64 it is the oracle's.
            precise = remember(
                copy.deepcopy(model).double(), x.double() if x.is_floating_point() else x, fisher="exact"
            )
            negligible = 1e-3 * sum(importance.sum() for importance in precise.importances.values())
            for parameter, importance in precise.importances.items():
                found, expected = memory.importances[parameter].double().sum(), importance.sum()
                assert (found - expected).abs() <= trace_error * (expected + negligible), parameter
            check_memory(remember(model, x, fisher="exact", earlier=memory, decay=0.5), model)
            before = model(x).detach()
            training = ProtectedTraining(model, [memory], 10.0)
            assert (model(x) - before).abs().max() <= error
            (model(x).float().square().sum() + training.penalty()).backward()
            assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
            training.end()
            assert (model(x) - before).abs().max() <= error

        run()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    """Compiled before or after rotation, whole or in parts; the memory knows nothing of it."""
    with tally(f"random architectures compiled, {backend}") as counts:

        @settings(max_examples=150 if SOAK else 1)
        @example(Recipe("tokens", ("attention", "lstm", ("linear", True, "weight_norm"), "tied")), False)
        @example(Recipe("picture", (("conv", 4, 3, 2, "zeros", True, ""), "batch norm", "group norm")), True)
        @given(recipes(mixed=False), st.booleans())
        def run(recipe, parts):
            torch._dynamo.reset()
            counts.add(recipe.kind)
            plain, model, x = build(recipe), build(recipe), recipe.inputs()
            if parts:
                for part in model.parts:
                    part.compile(backend=backend)
            compiled = model if parts else torch.compile(model, backend=backend)
            before = compiled(x).detach()
            memory, expected = remember(compiled, x, fisher="exact"), remember(plain, x, fisher="exact")
            assert set(memory.importances) == set(expected.importances)
            for name, importance in memory.importances.items():
                torch.testing.assert_close(importance, expected.importances[name], msg=name)
            training = ProtectedTraining(compiled, [memory], 10.0, batch_size=recipe.seed * 4)
            torch.testing.assert_close(compiled(x), before, rtol=1e-7, atol=1e-7)
            if not parts:
                torch.testing.assert_close(torch.compile(model, backend=backend)(x), before, rtol=1e-7, atol=1e-7)
            (compiled(x).square().sum() + training.penalty()).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.1 * torch.randn_like(parameter)
            moved = copy.deepcopy(model)
            training.pause()
            torch.testing.assert_close(compiled(x), moved(x), rtol=1e-7, atol=1e-7)
            training.resume()
            torch.testing.assert_close(compiled(x), moved(x), rtol=1e-7, atol=1e-7)
            training.end()
            torch.testing.assert_close(compiled(x), moved(x), rtol=1e-7, atol=1e-7)

        run()


def test_an_estimation_compiles_nothing():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    inner = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model = torch.compile(inner, backend=backend)
    x = torch.randn(6, 5)
    model(x)
    assert len(graphs) == 1
    inner[0].compile(backend=backend)
    consolidate(model, lambda: [((x,), None)], layers="all")
    assert len(graphs) == 1
