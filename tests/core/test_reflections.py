"""Bases of which only the leading vectors are asked for, and the cheap form they are applied in."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import nn

from avalanche_rewc import core
from avalanche_rewc.core import Rotation, bases, consolidate, merge_layer, rotate_layer
from avalanche_rewc.core.bases import eigenvectors
from avalanche_rewc.core.reflections import Reflections, find_reflections, leading_basis
from tests import oracle


@pytest.fixture(autouse=True)
def _two_products(monkeypatch):
    """The layers here are so small that their rotations would be one product with neither side's form."""
    monkeypatch.setattr(core.rotation, "SMALL", 0)


def orthogonal(size, groups=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(groups, size, size, dtype=torch.float64, generator=generator)).Q


def rotation_of(layer, rank, groups=1):
    weight = layer.weight
    return Rotation(orthogonal(weight.shape[1], groups), orthogonal(weight.shape[0] // groups, groups, 1)).leading(rank)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_it_begins_with_the_vectors_and_is_orthogonal(rank):
    basis = orthogonal(7, groups=2)
    leading = leading_basis(basis, rank)
    overlap = basis[..., :rank].mT @ leading[..., :rank]
    assert torch.allclose(overlap.abs(), torch.eye(rank).double().expand_as(overlap), atol=1e-12)
    assert torch.allclose(leading.mT @ leading, torch.eye(7).double().expand_as(leading), atol=1e-12)
    assert torch.allclose(leading_basis(leading, rank), leading, atol=1e-12)


def test_the_other_axes_stay_where_they_were_if_the_vectors_are_axes():
    identity = torch.eye(9).double().unsqueeze(0)
    assert torch.equal(leading_basis(identity, 3), identity)
    axes = leading_basis(identity[..., [0, 3, 1, 2, 4, 5, 6, 7, 8]], 2)
    assert torch.equal(axes[..., 4:], identity[..., 4:])


@pytest.mark.parametrize("rank", [4, 9, None])
def test_as_many_as_there_are_means_the_basis_itself_but_orthogonal(rank):
    basis = orthogonal(4)
    assert torch.allclose(leading_basis(basis, rank), basis, atol=1e-14)
    blurred = leading_basis(basis + 1e-5 * torch.randn(4, 4), rank)
    assert (blurred.mT @ blurred - torch.eye(4)).abs().max() < 1e-8


def test_the_form_is_found_where_it_is_right_and_pays():
    leading = leading_basis(orthogonal(9, groups=2), 3)
    found = find_reflections(leading, 3)
    assert found is not None
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    assert torch.allclose(found.times(x), leading @ x, atol=1e-12)
    assert torch.allclose(found.mT.times(x), leading.mT @ x, atol=1e-12)
    assert torch.allclose(found.after(x.mT), x.mT @ leading, atol=1e-12)
    assert find_reflections(leading, None) is None
    assert find_reflections(leading, 5) is None, "twice five products of nine are more than nine"
    assert find_reflections(orthogonal(9, groups=2), 3) is None, "not of that form"


def test_the_form_is_found_whatever_is_zero():
    """Units that are dead, inputs that are always 0 and vectors that are axes: zeros where Householder divides."""
    generator = torch.Generator().manual_seed(0)
    alive = torch.ones(40)
    alive[[0, 2, 3, 7, 20]] = 0
    x = torch.randn(100, 40, generator=generator) * alive
    identity = torch.eye(40).unsqueeze(0)
    shuffled = identity[..., torch.randperm(40, generator=generator)]
    few = torch.randn(5, 40, generator=generator) * alive
    for basis in (eigenvectors((x.T @ x).unsqueeze(0)), eigenvectors((few.T @ few).unsqueeze(0)), identity, shuffled):
        leading = leading_basis(basis, 9)
        found = find_reflections(leading, 9)
        assert found is not None
        assert torch.allclose(found.dense(), leading, atol=1e-6)
        overlap = basis[..., :9].mT @ leading[..., :9]
        assert torch.allclose(overlap.abs(), torch.eye(9).expand_as(overlap), atol=1e-5)


CASES = {
    "linear": (lambda: nn.Linear(9, 11), (4, 9), 1),
    "tokens": (lambda: nn.Linear(9, 11, bias=False), (4, 3, 9), 1),
    "conv": (lambda: nn.Conv2d(9, 11, 3, padding=1), (2, 9, 5, 4), 1),
    "groups": (lambda: nn.Conv1d(18, 22, 3, groups=2), (2, 18, 6), 2),
}
SIDES = [(float("inf"), float("inf")), (0.0, 0.0), (0.0, float("inf")), (float("inf"), 0.0)]


@pytest.mark.parametrize("rows", SIDES)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_computes_the_same_on_every_side(name, rows):
    make, shape, groups = CASES[name]
    torch.manual_seed(0)
    layer = make().double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    before, plain = layer.weight.detach().clone(), layer(x)
    gradients = torch.autograd.grad(plain.square().sum(), (layer.weight, x))
    rotation = rotation_of(layer, 4, groups)
    assert isinstance(rotation.input_matrix, Reflections)
    assert isinstance(rotation.output_matrix, Reflections)
    rotate_layer(layer, rotation, rows)
    turned = layer(x)
    torch.testing.assert_close(turned, plain, rtol=1e-10, atol=1e-10)
    found = torch.autograd.grad(turned.square().sum(), (layer._parameters["weight"], x))
    by_hand = oracle.rotated_by_hand(gradients[0], rotation.input_basis, rotation.output_basis)
    torch.testing.assert_close(found[0], by_hand, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found[1], gradients[1], rtol=1e-9, atol=1e-10)
    merge_layer(layer)
    torch.testing.assert_close(layer.weight.detach(), before, rtol=1e-12, atol=1e-12)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 16, 9)
        self.head = nn.Linear(9, 3)

    def forward(self, x):
        return self.head(self.fc(self.conv(x).tanh().flatten(1)).tanh())


@pytest.mark.parametrize("conv_basis", ["channel", "patch"])
def test_the_diagonal_is_that_of_its_own_coordinates(conv_basis):
    torch.manual_seed(0)
    model, x = Wide().double(), torch.randn(6, 3, 4, 4, dtype=torch.float64)
    memory = consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact", conv_basis=conv_basis, rank=3)
    assert isinstance(memory.rotations["fc.weight"].input_matrix, Reflections)
    expected = oracle.diagonal_fisher(oracle.score_rows(model, x, "exact"), memory.rotations)
    for name, importance in memory.importances.items():
        torch.testing.assert_close(importance, expected[name], rtol=1e-6, atol=1e-12, msg=name)
    for name, (input_factor, _) in memory.factors.items():
        leading = memory.rotations[name].input_basis[..., :3]
        rotated = leading.mT @ input_factor @ leading
        highest = torch.linalg.eigvalsh(input_factor).flip(-1)[..., :3]
        torch.testing.assert_close(rotated, torch.diag_embed(highest), rtol=1e-8, atol=1e-10)


def test_a_layer_that_grows_keeps_its_leading_vectors():
    rotation = rotation_of(nn.Linear(9, 11), 4).extended(outputs=15, inputs=9)
    assert isinstance(rotation.output_matrix, Reflections)
    full = rotation_of(nn.Linear(9, 4), 4).extended(outputs=15, inputs=9)  # its outputs were whole, their signs free
    weight = torch.randn(15, 9, dtype=torch.float64)
    for grown in (rotation, full):
        by_hand = oracle.rotated_by_hand(weight, grown.input_basis, grown.output_basis)
        torch.testing.assert_close(grown.to_rotated(weight), by_hand, rtol=1e-10, atol=1e-10)


def test_eigenvectors_that_are_nan_in_float32_are_taken_in_float64(monkeypatch):
    """As LAPACK answers for some factors of rank one, without an error."""
    eigh = torch.linalg.eigh
    monkeypatch.setattr(
        torch.linalg,
        "eigh",
        lambda a: eigh(a) if a.dtype == torch.float64 else (a[..., 0], torch.full_like(a, torch.nan)),
    )
    x = torch.randn(5, 3)
    vectors = eigenvectors((x.T @ x).unsqueeze(0))
    assert vectors.dtype == torch.float32
    assert (vectors.mT @ vectors - torch.eye(3)).abs().max() < 1e-6


@pytest.mark.parametrize("samples", [1, 5, 800])
@pytest.mark.parametrize("size", [64, 512, 1024])
def test_eigenvectors_in_float32(size, samples):
    """Orthogonal and diagonal to float32's precision, also where LAPACK does not converge in it (1024 from 5)."""
    torch.manual_seed(samples + 2)
    x = (torch.randn(samples, size) @ torch.randn(size, size)).relu() * (torch.rand(size) > 0.5)
    factor = (x.T @ x / samples).unsqueeze(0)
    vectors = leading_basis(eigenvectors(factor), None)
    assert vectors.dtype == torch.float32
    assert (vectors.mT @ vectors - torch.eye(size)).abs().max() < 1e-6
    rotated = vectors.double().mT @ factor.double() @ vectors.double()
    beside = rotated - torch.diag_embed(rotated.diagonal(dim1=-2, dim2=-1))
    assert beside.norm() < 1e-5 * rotated.norm()
    values = rotated.diagonal(dim1=-2, dim2=-1)[0]
    assert (values[:-1] - values[1:]).min() > -1e-5 * values[0], "largest first"


def wide_factors(size, samples, groups=1):
    torch.manual_seed(samples)
    x = (torch.randn(groups, samples, size) @ torch.randn(size, size)).relu() * (torch.rand(size) > 0.2)
    return x.mT @ x / samples


@pytest.mark.parametrize("samples", [5, 800])
@pytest.mark.parametrize("size", [320, 700])
def test_a_few_eigenvectors_of_a_wide_factor_are_the_leading_ones(size, samples):
    factor = wide_factors(size, samples, groups=2)
    vectors = eigenvectors(factor, 64)
    assert vectors.shape == (2, size, 64)
    assert vectors.dtype == torch.float32
    assert (vectors.mT @ vectors - torch.eye(64)).abs().max() < 1e-5
    values = torch.linalg.eigvalsh(factor.double()).flip(-1)[..., :64]
    turned = vectors.double().mT @ factor.double() @ vectors.double()
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-5 * values.max(), "each with its own value, in order"


def test_a_narrow_factor_or_most_vectors_take_the_ordinary_way():
    assert eigenvectors(wide_factors(319, 50), 64).shape[-1] == 319
    assert eigenvectors(wide_factors(320, 50), 81).shape[-1] == 320


@pytest.mark.parametrize("answer", ["nan", "error"])
def test_a_few_that_are_not_found_in_float32_are_taken_in_float64(answer, monkeypatch):
    def failing(matrix, subset_by_index, **options):
        if answer == "error":
            raise scipy.linalg.LinAlgError("no convergence")
        return None, np.full((len(matrix), subset_by_index[1] - subset_by_index[0] + 1), np.nan, matrix.dtype)

    factor = wide_factors(320, 800)
    right = eigenvectors(factor, 8)
    monkeypatch.setattr(scipy.linalg, "eigh", failing)
    vectors = eigenvectors(factor, 8)
    assert vectors.dtype == torch.float32
    assert ((vectors[..., :8] * right).sum(-2).abs() - 1).abs().max() < 1e-3


def test_consolidated_with_a_few_eigenvectors_is_as_with_all_of_them(monkeypatch):
    """The same importances in the same coordinates, whichever way the vectors were found."""
    eigh, calls = scipy.linalg.eigh, []

    def counted(matrix, **options):
        calls.append(len(matrix))
        return eigh(matrix, **options)

    monkeypatch.setattr(scipy.linalg, "eigh", counted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(330, 340), nn.ReLU(), nn.Linear(340, 5))
    x = torch.randn(300, 330) @ torch.diag(torch.linspace(1, 0, 330) ** 4)
    found = []
    for few_of in (320, 10**6):
        monkeypatch.setattr(bases, "FEW_OF", few_of)
        found.append(consolidate(model, lambda: [((x,), None)], rank=8, fisher="exact"))
    assert sorted(calls) == [330, 340], "both sides of the wide layer, and only once"
    few, whole = (memory.rotations["0.weight"] for memory in found)
    for ours, theirs in ((few.input_basis, whole.input_basis), (few.output_basis, whole.output_basis)):
        assert ours.shape == theirs.shape
        overlap = (ours[..., :8].mT @ theirs[..., :8])[0]
        assert (overlap.abs() - torch.eye(8)).abs().max() < 1e-2
    ours, theirs = (memory.importances["0.weight"][:8, :8] for memory in found)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4 * float(theirs.max()))


def test_a_basis_of_ones_own_may_have_only_the_columns_that_are_asked_for():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    x = torch.randn(20, 9, dtype=torch.float64)

    def first(count):
        return lambda a, g: (eigenvectors(a)[..., :count], eigenvectors(g)[..., :count])

    def bases_of(count, rank):
        return consolidate(model, lambda: [((x,), None)], basis=first(count), rank=rank).rotations["0.weight"]

    assert torch.equal(bases_of(2, 2).input_basis, bases_of(9, 2).input_basis)
    for count, rank in ((2, 3), (2, None)):
        with pytest.raises(ValueError, match="it returned shapes"):
            bases_of(count, rank)
