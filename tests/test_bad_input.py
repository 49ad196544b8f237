"""Every wrong use gives an error that names the culprit, before anything of the model is changed."""

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark
from avalanche.benchmarks.utils import AvalancheDataset
from torch import nn

from avalanche_rewc import REWC, REWCPlugin
from avalanche_rewc.core import consolidate
from tests.cases import CASES
from tests.toy import Growing, Tensors, blob_stream, settings


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"ewc_lambda": -1.0}, "ewc_lambda=-1.0"),
        ({"ewc_lambda": float("nan")}, "ewc_lambda=nan"),
        ({"ewc_lambda": float("inf")}, "ewc_lambda=inf"),
        ({"ewc_lambda": "10"}, "ewc_lambda='10'"),
        ({"ewc_lambda": None}, "ewc_lambda=None"),
        ({"layers": "all_but_lats"}, "did you mean 'all_but_last'"),
        ({"layers": [1, 2]}, "layers"),
        ({"conv_basis": "pixel"}, "conv_basis='pixel' is not one of 'channel', 'patch'"),
        ({"space": "rotate"}, "did you mean 'rotated'"),
        ({"fisher": "true"}, "fisher='true'"),
        ({"mode": "sum"}, "mode='sum'"),
        ({"mode": "online"}, 'mode="online" needs decay_factor'),
        ({"mode": "online", "decay_factor": 1.5}, "decay_factor=1.5"),
        ({"mode": "last", "decay_factor": 0.5}, "decay_factor=0.5"),
        ({"samples_per_class": 0}, "samples_per_class=0"),
        ({"samples_per_class": 2.5}, "samples_per_class=2.5"),
        ({"basis": "eigenvalues"}, "did you mean 'eigen'"),
        ({"rank": 0}, "rank=0 must be a whole number ≥ 1, or None for whole bases"),
        ({"rank": 2.5}, "rank=2.5"),
        ({"basis": "authors"}, "basis='authors' has no leading vectors: it needs rank=None"),
        ({"basis": "random", "rank": 3}, "basis='random' has no leading vectors: it needs rank=None"),
        ({"seed": "1"}, "seed='1'"),
    ],
)
def test_options_are_refused_when_they_are_given(options, culprit):
    with pytest.raises(ValueError) as error:
        REWCPlugin(**{"ewc_lambda": 1.0, **options})
    assert culprit in str(error.value)


def untouched(model):
    """A check that a model is still what it is now."""
    before = {k: v.clone() for k, v in model.state_dict().items()}
    classes = [type(m) for m in model.modules()]

    def check():
        assert list(before) == list(model.state_dict())
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        assert classes == [type(m) for m in model.modules()]

    return check


@pytest.mark.parametrize(
    ("layers", "culprit"),
    [
        (["body.O"], "no module 'body.O'; close to it: body"),
        (["norm"], "module 'norm' is a BatchNorm1d"),
        (lambda name, module: False, "leaves no layer to rotate"),
    ],
)
def test_layers_are_refused_before_the_first_step(layers, culprit):
    model = Growing()
    check = untouched(model)
    with pytest.raises(ValueError) as error:
        REWC(ewc_lambda=1.0, layers=layers, **settings(model)).train(blob_stream(dtype=torch.float32).train_stream[0])
    assert culprit in str(error.value)
    check()


def test_no_convolution_for_conv():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6))
    check = untouched(model)
    strategy = REWC(ewc_lambda=1.0, layers="conv", **settings(model))
    with pytest.raises(ValueError, match=r'layers=\'conv\' leaves no layer.*0, 2.*layers="none"'):
        strategy.train(blob_stream(dtype=torch.float32).train_stream[0])
    check()


def test_an_experience_with_one_sample():
    data = Tensors(torch.randn(3, 5), [0, 1, 1])
    stream = nc_benchmark(data, data, 2, task_labels=False, fixed_class_order=[0, 1])
    model = Growing()
    check = untouched(model)
    with pytest.raises(ValueError, match=r"experience 0 has 1 sample.*more data"):
        REWC(ewc_lambda=1.0, **settings(model)).train(stream.train_stream[0])
    check()


def test_a_dataset_without_labels():
    data = AvalancheDataset([torch.utils.data.TensorDataset(torch.randn(4, 5))])
    model = Growing()
    check = untouched(model)
    with pytest.raises(ValueError, match=r"has no labels.*samples_per_class=None"):
        REWC(ewc_lambda=1.0, **settings(model)).train(benchmark_from_datasets(train=[data]).train_stream[0])
    check()


def test_non_finite_gradients_name_the_layer_and_keep_the_old_memory():
    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    class Model(Growing):
        poisoned = False

        def forward(self, x):
            x = self.body(torch.relu(self.norm(self.conv(x.unsqueeze(1)))).flatten(1))
            return self.head(Poison.apply(x) if self.poisoned and not self.training else x)

    model = Model()
    stream = blob_stream(dtype=torch.float32)
    strategy = REWC(ewc_lambda=1.0, **settings(model))
    strategy.train(stream.train_stream[0])
    memory = strategy.rewc.memories[-1]
    model.poisoned = True
    with pytest.raises(RuntimeError, match=r"Fisher of (conv|body\.\d)\.weight is not finite.*learning rate"):
        strategy.train(stream.train_stream[1])
    assert strategy.rewc.memories == [memory]
    assert [type(m) for m in model.modules()] == [type(m) for m in Model().modules()]
    assert all(torch.isfinite(v).all() for v in memory.importances.values())


def test_non_finite_outputs():
    model, x = CASES["mlp"].model(), CASES["mlp"].inputs()
    x[5] = float("inf")
    with pytest.raises(RuntimeError, match="outputs are not finite on batch 1"):
        consolidate(model, lambda: [((x[:4],), None), ((x[4:],), None)])


def test_batch_statistics_in_eval_mode_are_named():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match=r"module '1' \(BatchNorm1d\).*track_running_stats=True"):
        consolidate(model, lambda: [((torch.randn(6, 5),), None)])


def test_samples_that_depend_on_each_other():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            x = self.a(x)
            return self.b(x - x.mean(0))

    with pytest.raises(RuntimeError, match="change with the other samples"):
        consolidate(Mixing(), lambda: [((torch.randn(6, 5),), None)])


def test_what_a_model_must_return():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 4)

        def forward(self, x):
            return self.a(x), x

    x = torch.randn(6, 5)
    with pytest.raises(RuntimeError, match=r"logits of shape \(samples, classes\).*not tuple"):
        consolidate(Pair(), lambda: [((x,), None)])
    with pytest.raises(RuntimeError, match=r"not a tensor of shape \(3, 2, 4\)"):
        consolidate(nn.Linear(5, 4), lambda: [((torch.randn(6, 2, 5),), None)])
    frozen = nn.Linear(5, 4).requires_grad_(False)
    with pytest.raises(RuntimeError, match="nothing to protect"):
        consolidate(frozen, lambda: [((x,), None)], layers="none")
    with pytest.raises(RuntimeError, match="no samples"):
        consolidate(nn.Linear(5, 4), lambda: [])


def test_labels_of_the_empirical_fisher():
    model, x = CASES["mlp"].model(), CASES["mlp"].inputs()
    with pytest.raises(ValueError, match="needs the labels"):
        consolidate(model, lambda: [((x,), None)], fisher="empirical")
    with pytest.raises(ValueError, match="label 9 has no logit"):
        consolidate(model, lambda: [((x,), torch.full((7,), 9))], fisher="empirical")


def test_a_basis_of_the_wrong_shape():
    model, x = CASES["mlp"].model(), CASES["mlp"].inputs()
    with pytest.raises(ValueError, match=r"basis: for 0.weight.*\(1, 6, 6\) and \(1, 8, 8\)"):
        consolidate(model, lambda: [((x,), None)], basis=lambda a, g: (g, a))


def test_a_parameter_that_shrinks():
    stream = blob_stream(dtype=torch.float32)
    model = Growing()
    strategy = REWC(ewc_lambda=1.0, **settings(model))
    strategy.train(stream.train_stream[0])
    model.body[0] = nn.Linear(15, 6)
    model.body[2] = nn.Linear(6, 8)
    with pytest.raises(RuntimeError, match=r"body.0.weight had shape \(8, 15\).*\(6, 15\) now"):
        strategy.train(stream.train_stream[1])


def test_thawed_parameters_are_warned_of():
    stream = blob_stream(dtype=torch.float32)
    model = Growing()
    model.conv.weight.requires_grad_(False)
    strategy = REWC(ewc_lambda=1.0, **settings(model))
    strategy.train(stream.train_stream[0])
    model.conv.weight.requires_grad_(True)
    with pytest.warns(RuntimeWarning, match=r"conv\.weight: frozen when importances were estimated"):
        strategy.train(stream.train_stream[1])
