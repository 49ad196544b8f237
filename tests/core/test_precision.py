"""Half precision: under autocast, and with parameters that are half themselves."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from avalanche_rewc import core
from avalanche_rewc.core import ProtectedTraining, consolidate

UNDER_AUTOCAST = """
import torch
from torch import nn
from avalanche_rewc.core import ProtectedTraining, consolidate, is_rotated, rotation
rotation.SMALL = SMALL_LAYERS
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.Flatten(), nn.Linear(8 * 36, 16), nn.ReLU(),
                      nn.Linear(16, 4))
x = torch.randn(12, 3, 6, 6)
memory = consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact")
weight = model[0].weight.detach().clone()
with torch.autocast("cpu", dtype=torch.bfloat16):
    before = model(x)
training = ProtectedTraining(model, [memory], 1.0, batch_size=BATCH)
assert is_rotated(model[0])
with torch.autocast("cpu", dtype=torch.bfloat16):
    # composed in float32, whatever surrounds it
    assert model[0].weight.dtype == torch.float32
    assert (model[0].weight - weight).abs().max() < 1e-6
    after = model(x)
    assert after.dtype == before.dtype == torch.bfloat16
    (after.float().square().mean() + training.penalty()).backward()
assert (after - before).abs().max() < 0.05 * before.abs().max(), (after - before).abs().max()
assert all(torch.isfinite(p.grad).all() for p in model.parameters())
training.end()
assert (model[0].weight - weight).abs().max() < 1e-6
"""


@pytest.mark.parametrize("small", [0, core.rotation.SMALL], ids=["two products", "one product"])
@pytest.mark.parametrize("batch", [1, 10**6])
def test_autocast(batch, small):
    """In a process of its own: some machines announce instructions for bfloat16 products that they do not have."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    code = UNDER_AUTOCAST.replace("BATCH", str(batch)).replace("SMALL_LAYERS", str(small))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_parameters_in_bfloat16():
    """Sums of squares are taken and kept in float32: importances of 16 bits would overflow or vanish."""
    torch.manual_seed(0)
    layers = [nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 6, 3)]
    model = nn.Sequential(*layers)
    x = torch.randn(10, 2, 8)
    reference = consolidate(model, lambda: [((x,), None)], layers="all", fisher="exact")
    with torch.backends.mkldnn.flags(enabled=False):
        model.bfloat16()
        memory = consolidate(model, lambda: [((x.bfloat16(),), None)], layers="all", fisher="exact")
        training = ProtectedTraining(model, [memory], 1.0)
        assert training.penalty().dtype == torch.float32
        training.end()
    for name, importance in memory.importances.items():
        assert importance.dtype == torch.float32
        total, expected = importance.float().sum(), reference.importances[name].sum()
        assert total == pytest.approx(float(expected), rel=0.1)
    basis = memory.factors["2.weight"][0]
    assert basis.dtype == torch.float32


def test_bases_are_orthogonal_in_float32():
    """Also from far fewer samples than dimensions, and from a constant input."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 50), nn.ReLU(), nn.Linear(50, 3))
    for x in (torch.randn(4, 200), torch.ones(4, 200), 1e6 * torch.randn(4, 200), torch.zeros(4, 200)):
        memory = consolidate(model, lambda x=x: [((x,), None)], layers="all")
        for rotation in memory.rotations.values():
            for basis in (rotation.input_basis, rotation.output_basis):
                product = basis.double().mT @ basis.double()
                assert (product - torch.eye(basis.shape[-1])).abs().max() < 1e-6
        assert all((f >= 0).all() and torch.isfinite(f).all() for f in memory.importances.values())
