"""Kept energy: exact against the whole matrix, and rotation really helps on a trained network."""

import pytest
import torch
from torch import nn

from avalanche_rewc import diagnostics
from avalanche_rewc.core import Rotation, consolidate
from tests import oracle
from tests.cases import CASES
from tests.toy import blobs


def share(matrix):
    return float(matrix.diagonal().square().sum() / matrix.square().sum())


@pytest.mark.parametrize("name", ["mlp", "conv2d-groups", "tokens", "windows"])
@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_kept_energy_is_that_of_the_whole_matrix(name, kind):
    model, x = CASES[name].model(), CASES[name].inputs(9)
    labels = torch.arange(9) % 3

    def batches():
        return [((x[:5],), labels[:5]), ((x[5:],), labels[5:])]

    memory = consolidate(model, batches, layers="all", fisher=kind)
    rows = oracle.score_rows(model, x, kind, labels)
    for energy in diagnostics.kept_energies(model, batches, memory.rotations, fisher=kind):
        assert energy.exact
        before = oracle.full_fisher(rows, energy.parameter)
        after = oracle.full_fisher(rows, energy.parameter, memory.rotations[energy.parameter])
        assert energy.before == pytest.approx(share(before), rel=1e-6)
        assert energy.after == pytest.approx(share(after), rel=1e-6)
        ours = diagnostics.fisher_matrix(model, batches, energy.parameter, fisher=kind)
        torch.testing.assert_close(ours, before, rtol=1e-6, atol=1e-10)
        assert diagnostics.diagonal_share(ours) == pytest.approx(energy.before, rel=1e-6)
        assert energy.parameter in str(energy)


def test_the_estimate_for_many_samples_is_close():
    model, x = CASES["mlp"].model(), CASES["mlp"].inputs(400)

    def batches():
        return [((part,), None) for part in x.split(64)]

    memory = consolidate(model, batches, layers=["2"], fisher="exact")
    (exact,) = diagnostics.kept_energies(model, batches, memory.rotations)
    (about,) = diagnostics.kept_energies(model, batches, memory.rotations, max_rows=300)
    assert exact.exact
    assert not about.exact
    assert "about" in str(about)
    assert about.after == pytest.approx(exact.after, rel=0.15)


@pytest.fixture(scope="module")
def trained():
    """A small network that has learned something."""
    data = blobs(classes=6, per_class=40, shape=(12,))
    x, y = data.x, torch.tensor(data.targets)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 6)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert (model(x).argmax(1) == y).double().mean() > 0.95
    return model, lambda: [((x,), y)]


def test_rotation_makes_the_fisher_of_a_trained_network_more_diagonal(trained):
    model, batches = trained
    for basis, better in (("eigen", 1.5), ("input_only", 1.0), ("random", None)):
        from avalanche_rewc.core import BASES, RandomBasis

        function = BASES.get(basis, RandomBasis(0))
        memory = consolidate(model, batches, layers="all", fisher="exact", basis=function)
        energies = {e.parameter: e for e in diagnostics.kept_energies(model, batches, memory.rotations)}
        middle = energies["2.weight"]
        if better is not None:
            assert middle.after > better * middle.before, basis
        if basis == "eigen":
            reached = middle.after
            assert all(e.after > e.before for e in energies.values())
        else:
            assert middle.after < reached


def test_a_random_rotation_is_seen_through():
    """A Fisher that is diagonal in a hidden basis is found to be so."""
    x = torch.diag(torch.tensor([3.0, 2.0, 1.0])).double().repeat(20, 1)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).double()).Q
    model = nn.Linear(3, 2, bias=False).double()

    def batches():
        return [((x @ turn.T,), None)]

    hidden = {"weight": Rotation(turn.unsqueeze(0), torch.linalg.qr(torch.ones(2, 2).double()).Q.unsqueeze(0))}
    with torch.no_grad():
        model.weight.zero_()  # every class equally likely: g is ±½ (1, −1)
    (energy,) = diagnostics.kept_energies(model, batches, hidden)
    assert energy.before < 0.9
    assert energy.after == pytest.approx(1.0)


def test_heat_map(trained, tmp_path):
    model, batches = trained
    memory = consolidate(model, batches, layers="all", fisher="exact")
    figure = diagnostics.plot_fisher(model, batches, "2", memory.rotations["2.weight"])
    figure.savefig(tmp_path / "fisher.png")
    assert (tmp_path / "fisher.png").stat().st_size > 10_000
    titles = [axis.get_title() for axis in figure.axes[:2]]
    (energy,) = diagnostics.kept_energies(model, batches, {"2.weight": memory.rotations["2.weight"]})
    assert titles == [
        f"original: the diagonal keeps {energy.before:.1%}",
        f"rotated: the diagonal keeps {energy.after:.1%}",
    ]


def test_a_matrix_too_large_is_refused():
    model = nn.Linear(100, 100)
    with pytest.raises(ValueError, match="kept_energies"):
        diagnostics.fisher_matrix(model, lambda: [((torch.randn(2, 100),), None)], "weight")
