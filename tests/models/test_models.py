"""The paper's networks: shapes, sizes, starts, and growing heads."""

import copy

import numpy as np
import pytest
import torch
from avalanche.models import IncrementalClassifier
from avalanche.training.supervised import Naive
from torch import nn
from torchvision.models import vgg16

from avalanche_rewc.models import FeatureMLP, FisherMLP, LeNet, VGG16GlobalPool, load_vgg16_weights
from avalanche_rewc.models.vgg16 import vgg16_convolutions
from avalanche_rewc.models.weights import CONVOLUTIONS
from avalanche_rewc.streams import SplitDigits

MODELS = {
    "LeNet": (LeNet, (1, 32, 32), 84),
    "FeatureMLP 256": (FeatureMLP, (512,), 256),
    "FeatureMLP 512": (lambda **kw: FeatureMLP(hidden=(512, 512), **kw), (512,), 512),
    "FisherMLP": (FisherMLP, (1, 28, 28), 10),
    "VGG16GlobalPool": (lambda **kw: VGG16GlobalPool(weights=None, **kw), (3, 32, 32), 512),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_growth(name):
    build, shape, width = MODELS[name]
    model = build(initial_out_features=5).eval()
    assert model(torch.randn(3, *shape)).shape == (3, 5)
    assert isinstance(model.head, IncrementalClassifier)
    old = model.head.classifier.weight.clone()
    assert old.shape == (5, width)
    model.head.adaptation(SplitDigits(1).train_stream[0])
    assert model(torch.randn(3, *shape)).shape == (3, 10)
    assert torch.equal(model.head.classifier.weight[:5], old)


def weights(model):
    return {n: tuple(p.shape) for n, p in model.named_parameters() if n.endswith("weight")}


def test_lenet_is_6_16_120_84():
    assert list(weights(LeNet(10)).values()) == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]


def test_feature_mlps():
    assert list(weights(FeatureMLP(initial_out_features=100)).values()) == [(256, 512), (256, 256), (100, 256)]
    assert list(weights(FeatureMLP(hidden=(512, 512))).values())[:2] == [(512, 512), (512, 512)]
    with pytest.raises(ValueError, match="at least 1"):
        FeatureMLP(hidden=(0,))


def test_the_network_of_the_fisher_figure():
    model = FisherMLP(initial_out_features=10)
    assert list(weights(model).values()) == [(10, 784), (10, 10), (10, 10)]
    assert model.body[3].weight.numel() == 100


def test_lenet_starts_from_a_truncated_normal_for_late_classes_too():
    torch.manual_seed(0)
    model = LeNet(2)
    model.head.adaptation(SplitDigits(1).train_stream[0])
    for name, parameter in model.state_dict().items():
        if name.endswith("active_units"):
            continue
        if name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.abs().max() <= 0.2, name
    new_rows = model.head.classifier.weight[2:].detach()
    assert float(new_rows.std()) == pytest.approx(0.088, abs=0.006)  # of N(0, 0.1²) cut off at ±0.2
    assert float(model.fc1.weight.detach().std()) == pytest.approx(0.088, abs=0.002)


def test_lenet_refuses_pictures_that_were_not_padded():
    with pytest.raises(ValueError, match="32×32 pictures, not 28×28"):
        LeNet()(torch.zeros(1, 1, 28, 28))


def reference():
    torch.manual_seed(1)
    return vgg16(weights=None).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A state_dict and an .npz of the same random VGG-16, and the network."""
    folder, network = tmp_path_factory.mktemp("weights"), reference()
    state = {name: value for name, value in network.state_dict().items() if name.startswith("features.")}
    torch.save(state, folder / "vgg16.pth")
    np.savez(folder / "vgg16.npz", **{name: value.numpy() for name, value in state.items()})
    return folder, network


@pytest.mark.parametrize("file", ["vgg16.pth", "vgg16.npz"])
def test_convolutions_are_torchvisions(saved, file):
    folder, network = saved
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        ours, theirs = vgg16_convolutions(folder / file).eval()(x), network.features[:30](x)
        pooled = VGG16GlobalPool(folder / file).features(x)
    assert torch.equal(ours, theirs)
    assert torch.equal(pooled, theirs.flatten(2).max(2).values)


def test_the_same_weights_have_the_same_sha_whatever_the_file(saved):
    folder, _ = saved
    packed, plain = load_vgg16_weights(folder / "vgg16.npz"), load_vgg16_weights(folder / "vgg16.pth")
    assert packed.sha256 == plain.sha256
    changed = copy.deepcopy(plain)
    changed.parameters["features.0.bias"][0] += 1
    assert changed.sha256 != plain.sha256


class Code:
    def __reduce__(self):
        return print, ("executed",)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    state = {f"features.{i}.weight": torch.zeros(o, c, 3, 3) for i, c, o in CONVOLUTIONS}
    state |= {f"features.{i}.bias": torch.zeros(o) for i, _, o in CONVOLUTIONS}
    cases = [
        ({k: v for k, v in state.items() if k != "features.5.bias"}, "features.5.bias is missing"),
        (
            {**state, "features.2.weight": torch.zeros(64, 3, 3, 3)},
            r"features.2.weight has shape \(64, 3, 3, 3\), VGG-16 has",
        ),
        ({**state, "features.2.bias": torch.full((64,), torch.nan)}, "features.2.bias has values that are not finite"),
        (torch.zeros(3), "holds a Tensor, not a state_dict"),
        (Code(), "cannot be read as weights"),
    ]
    for content, message in cases:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=message):
            VGG16GlobalPool(tmp_path / "w.pth")
    for name in ("w.pth", "w.npz"):
        (tmp_path / name).write_bytes(b"junk")
        with pytest.raises(ValueError, match="cannot be read as weights"):
            load_vgg16_weights(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.pth: no such file"):
        load_vgg16_weights(tmp_path / "none.pth")


class TwentyPixels(nn.Module):
    """Digits as small colour pictures for VGG-16."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(nn.functional.interpolate(x, (20, 20)).expand(-1, 3, -1, -1))


def test_two_parameter_groups_stay_two_when_the_head_grows():
    vgg = VGG16GlobalPool(weights=None, hidden=(16, 16))
    optimizer = torch.optim.Adam(vgg.parameter_groups(), weight_decay=1e-5)
    model = TwentyPixels(vgg)
    strategy = Naive(
        model=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), train_mb_size=400, evaluator=None
    )
    for experience in SplitDigits(2).train_stream:
        experience.dataset = experience.dataset.subset(range(0, len(experience.dataset), 20))
        strategy.train(experience)
        convolutions, rest = optimizer.param_groups
        assert (convolutions["lr"], rest["lr"]) == (1e-5, 1e-3)
        assert {id(p) for p in convolutions["params"]} == {id(p) for p in vgg.convolutions.parameters()}
        assert {id(p) for p in rest["params"]} == {id(p) for part in (vgg.fc, vgg.head) for p in part.parameters()}
    assert vgg.head.classifier.out_features == 10
