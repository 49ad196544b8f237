"""ROTATE and COMBINE change nothing that anybody but the optimizer can see."""

import copy
import pickle

import pytest
import torch
import torchvision
from torch import nn

from avalanche_rewc.core import Rotation, is_rotated, merge_layer, rotate_layer, rotation
from avalanche_rewc.core.rotation import between, spread
from avalanche_rewc.core.selection import rotatable_layers
from tests import oracle
from tests.cases import CASES, Attention, mlp


def random_rotation(module, patch=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = module.weight
    groups = getattr(module, "groups", 1)
    inputs = weight[0].numel() if patch else weight.shape[1]

    def orthogonal(size):
        matrix = torch.randn(groups, size, size, dtype=torch.float64, generator=generator)
        return torch.linalg.qr(matrix).Q.to(weight.dtype)

    return Rotation(orthogonal(inputs), orthogonal(weight.shape[0] // groups))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(True), nn.MaxPool2d(2)
        )
        self.fcs = nn.Sequential(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))

    def forward(self, x):
        return self.fcs(self.convs(x).flatten(1))


MODELS = {
    "mlp": (mlp, (6,)),
    "lenet": (LeNet, (1, 32, 32)),
    "vgg16": (lambda: torchvision.models.vgg16(num_classes=5).features, (3, 32, 32)),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=5), (3, 64, 64)),
    "vit": (Attention, (3, 5)),
}


EVERYWHERE = [(float("inf"), float("inf")), (0.0, 0.0), (0.0, float("inf")), (float("inf"), 0.0)]
LARGE = [(name, rows) for name in ("vgg16", "resnet18") for rows in EVERYWHERE[:2]]  # both sides alike
SMALL = [(name, rows) for name in ("mlp", "lenet", "vit") for rows in EVERYWHERE]


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("name", "rows"), SMALL + LARGE)
def test_forward_is_unchanged_and_merge_is_the_inverse(name, dtype, tolerance, train, rows):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype).train(train)
    x = torch.randn(3, *shape, dtype=dtype)
    weights = {n: m.weight.detach().clone() for n, m in rotatable_layers(model).items()}
    statistics = {n: b.clone() for n, b in model.named_buffers()}

    def run():
        for n, b in model.named_buffers():
            b.copy_(statistics[n])
        torch.manual_seed(1)  # the same dropout
        return model(x)

    before = run()
    keys = list(model.state_dict())
    names = [n for n, _ in model.named_parameters()]
    for i, layer in enumerate(rotatable_layers(model).values()):
        rotate_layer(layer, random_rotation(layer, seed=i), rows)
    scale = max(1.0, float(before.abs().max()))
    assert (run() - before).abs().max() <= tolerance * scale
    assert list(model.state_dict()) == keys
    assert [n for n, _ in model.named_parameters()] == names
    for layer in rotatable_layers(model).values():
        merge_layer(layer)
    assert (run() - before).abs().max() <= tolerance * scale
    for n, layer in rotatable_layers(model).items():
        assert (layer.weight - weights[n]).abs().max() <= tolerance * weights[n].abs().max()


@pytest.mark.parametrize("small", [0, rotation.SMALL], ids=["two products", "one product"])
@pytest.mark.parametrize("patch", [False, True])
@pytest.mark.parametrize("name", [n for n, c in CASES.items() if "conv" in c.rotated])
def test_every_kind_of_convolution(name, patch, small, monkeypatch):
    """Strides, dilation, padding modes, groups: forward and backward agree with the plain layer on every side."""
    monkeypatch.setattr(rotation, "SMALL", small)
    case = CASES[name]
    x = case.inputs()
    for rows in ((float("inf"), float("inf")), (0.0, 0.0), (0.0, float("inf")), (float("inf"), 0.0)):
        model = case.model()
        conv = model.conv
        plain = model(x)
        gradient = torch.autograd.grad(plain.square().sum(), conv.weight)[0]
        bases = random_rotation(conv, patch)
        rotate_layer(conv, bases, rows)
        rotated = model(x)
        torch.testing.assert_close(rotated, plain, rtol=1e-10, atol=1e-10)
        rotated_gradient = torch.autograd.grad(rotated.square().sum(), conv._parameters["weight"])[0]
        by_hand = oracle.rotated_by_hand(gradient, bases.input_basis, bases.output_basis)
        torch.testing.assert_close(rotated_gradient, by_hand, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(bases.to_rotated(gradient), by_hand, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(bases.to_original(by_hand), gradient, rtol=1e-9, atol=1e-10)


def test_the_rotated_layer_is_an_ordinary_one_to_everybody():
    layer = nn.Linear(4, 3).double()
    parameter = layer.weight
    weight = parameter.detach().clone()
    rotation = random_rotation(layer)
    rotate_layer(layer, rotation)
    assert is_rotated(layer)
    assert isinstance(layer, nn.Linear)
    assert type(layer).__name__ == "Linear"
    assert layer._parameters["weight"] is parameter
    torch.testing.assert_close(parameter.detach(), rotation.to_rotated(weight))
    torch.testing.assert_close(layer.weight.detach(), weight)
    torch.testing.assert_close(layer.state_dict()["weight"], weight)

    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(copied) is nn.Linear
        assert isinstance(copied.weight, nn.Parameter)
        torch.testing.assert_close(copied.weight.detach(), weight)
        torch.testing.assert_close(copied.bias, layer.bias)
    torch.testing.assert_close(parameter.detach(), rotation.to_rotated(weight))  # copying has not touched it

    new = torch.randn_like(weight)
    layer.load_state_dict({"weight": new, "bias": torch.zeros(3)})
    torch.testing.assert_close(layer.weight.detach(), new)
    torch.testing.assert_close(parameter.detach(), rotation.to_rotated(new))

    merge_layer(layer)
    assert type(layer) is nn.Linear
    assert layer.weight is parameter
    assert not is_rotated(layer)
    torch.testing.assert_close(layer.weight.detach(), new)


def test_a_subclass_with_a_forward_of_its_own_still_works():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            return self._conv_forward(x, weight, self.bias)

    torch.manual_seed(0)
    layer = Standardised(2, 3, 3).double()
    x = torch.randn(2, 2, 5, 5).double()
    before = layer(x)
    rotate_layer(layer, random_rotation(layer), rows=(0.0, 0.0))  # even where the activations would be cheaper
    torch.testing.assert_close(layer(x), before)


def test_misuse_is_refused():
    layer = nn.Linear(4, 3)
    with pytest.raises(RuntimeError, match="not rotated"):
        merge_layer(layer)
    rotate_layer(layer, random_rotation(layer))
    with pytest.raises(RuntimeError, match="already"):
        rotate_layer(layer, random_rotation(layer))


def test_growing_extends_with_the_identity():
    layer = nn.Linear(4, 3).double()
    rotation = random_rotation(layer)
    extended = rotation.extended(outputs=5, inputs=6)
    weight = torch.randn(5, 6).double()
    rotated = extended.to_rotated(weight)
    torch.testing.assert_close(rotated[:3, :4], rotation.to_rotated(weight[:3, :4].contiguous()))
    torch.testing.assert_close(rotated[3:, 4:], weight[3:, 4:])
    torch.testing.assert_close(extended.to_original(rotated), weight)


def test_between_two_rotations_and_the_spread_of_a_diagonal():
    layer = nn.Conv2d(2, 3, 2).double()
    first, second = random_rotation(layer, seed=1), random_rotation(layer, seed=2)
    weight = layer.weight.detach()
    for source in (None, first):
        for target in (None, second):
            here = weight if source is None else source.to_rotated(weight)
            there = weight if target is None else target.to_rotated(weight)
            step = between(source, target)
            torch.testing.assert_close(here if step is None else step.to_rotated(here), there)

    importance = torch.rand_like(weight)
    # The full matrix of the quadratic form diag(importance), taken from first's into second's coordinates.
    n = weight.numel()
    basis = torch.eye(n, dtype=torch.float64).reshape(n, *weight.shape)
    columns = torch.stack([between(second, first).to_rotated(e) for e in basis]).flatten(1)
    full = columns @ torch.diag(importance.flatten()) @ columns.T
    torch.testing.assert_close(spread(importance, first, second).flatten(), full.diagonal())
    torch.testing.assert_close(spread(importance, None, None), importance)
    assert spread(importance, first, None).sum() == pytest.approx(float(importance.sum()))


def test_the_input_side_of_a_first_layer_goes_to_the_activations_sooner():
    """Its input needs no gradient, so that it is half as dear there. The layer computes the same either way."""
    layer = torch.nn.Linear(5, 8).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    y = layer(x)
    for rows, first, inner in ((7.0, True, True), (15.0, True, False), (16.0, False, False)):
        rotate_layer(layer, random_rotation(layer), (rows, float("inf")))
        state = layer.__dict__["_rewc_rotation"]
        assert (state.first_kernel is not None, state.input_kernel is not None) == (first, inner)
        for requires_grad in (False, True):
            turned = layer(x.clone().requires_grad_(requires_grad))
            torch.testing.assert_close(turned, y)
            (gradient,) = torch.autograd.grad(turned.square().sum(), layer._parameters["weight"])
            by_hand = state.rotation.to_rotated((2 * y).T @ x)
            torch.testing.assert_close(gradient, by_hand)
        merge_layer(layer)


def test_composed_kernels_lie_in_memory_as_plain_ones_do():
    """Any other order would make a convolution copy its activations."""
    layer = torch.nn.Conv2d(4, 6, 3)
    rotate_layer(layer, random_rotation(layer))
    assert layer.weight.is_contiguous()
    assert torch.autograd.grad(layer.weight.sum(), layer._parameters["weight"])[0].is_contiguous()
