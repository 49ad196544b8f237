"""CIFAR-100's pixels, whole; and files that are not what they should be."""

import os
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from avalanche_rewc.models import FeatureMLP
from avalanche_rewc.streams import NonCanonicalCounts, SplitCIFAR100
from avalanche_rewc.streams.cifar100 import MEAN, STD, Normalise, read_cifar100
from tests.real_data import real
from tests.streams.train import learn, shorten


@pytest.fixture(scope="module")
def parts():
    return read_cifar100(real("cifar-100-python"))


@pytest.fixture(scope="module")
def benchmark():
    return SplitCIFAR100(4, data_root=real("cifar-100-python").parent, seed=0, validation=0.1)


def test_the_whole_set(parts):
    train, test, names = parts
    assert train.inputs.shape == (50_000, 3, 32, 32)
    assert torch.equal(torch.bincount(train.targets), torch.full((100,), 500))
    assert torch.equal(torch.bincount(test.targets), torch.full((100,), 100))
    assert names == sorted(names)
    assert (names[0], names[19], names[99]) == ("apple", "cattle", "worm")


def test_channels_have_the_known_means_and_deviations(parts):
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in parts[0].inputs.unbind(1)]).double()
    values = torch.arange(256) / 255
    shares = counts / counts.sum(1, keepdim=True)
    means = shares @ values.double()
    deviations = (shares @ values.double().square() - means.square()).sqrt()
    assert means.tolist() == pytest.approx(MEAN, abs=1e-4)
    assert deviations.tolist() == pytest.approx(STD, abs=1.1e-4)


def test_the_stream(benchmark):
    assert [len(e.dataset) for e in benchmark.train_stream] == [11_250] * 4
    assert [len(e.dataset) for e in benchmark.valid_stream] == [1_250] * 4
    assert [len(e.dataset) for e in benchmark.test_stream] == [2_500] * 4
    sample, label, task = benchmark.train_stream[1].dataset[0]
    assert sample.dtype == torch.float32
    assert 25 <= label < 50
    assert task == 0


def test_samples_are_normalised_pixels(benchmark):
    sample = benchmark.test_stream[0].dataset[5][0]
    pixels = (sample * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
    assert torch.allclose(pixels, benchmark.data["test"][0].inputs[5].float(), atol=1e-3)


def test_training_end_to_end(benchmark):
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(4), FeatureMLP(192, (64,)))
    train, test = shorten(benchmark, "train", 500)[:2], shorten(benchmark, "test", 100)[:2]
    first, last = learn(model, train, test, epochs=4, lr=3e-3)
    assert first[0] > 2 / 25
    assert last[1] > 2 / 50


def test_own_transforms():
    benchmark = SplitCIFAR100(
        2,
        data_root=real("cifar-100-python").parent,
        train_transform=Normalise((0, 0, 0), (1, 1, 1)),
        class_order=[3, 4],
    )
    assert float(benchmark.train_stream[0].dataset[0][0].min()) >= 0
    assert float(benchmark.test_stream[0].dataset[0][0].min()) < 0


def test_missing_files_are_named_with_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-100-python.train.*download=True"):
        SplitCIFAR100(data_root=tmp_path)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def folder_with(tmp_path, content):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    good = {"data": np.zeros((200, 3072), np.uint8), "fine_labels": list(range(100)) * 2}
    names = {"fine_label_names": [str(i) for i in range(100)]}
    for name, value in {"train": good, "test": good, "meta": names, **content}.items():
        (folder / name).write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=2))


@pytest.mark.parametrize("name", ["train", "meta"])
def test_a_pickle_that_would_execute_code_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, {name: {"data": Malicious(), "fine_label_names": Malicious()}})
    with pytest.raises(ValueError, match="mkdir, which is no part of a data set"):
        SplitCIFAR100(data_root=tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": b"\x80\x02]q"}, "train cannot be read"),
        ({"train": [1, 2]}, "holds a list"),
        ({"train": {"data": [1], "fine_labels": [1]}}, "no pixels or no labels"),
        ({"train": {"data": np.zeros((5, 3072), np.uint8), "fine_labels": [0] * 4}}, r"\(5, 3072\) and 4 labels"),
        ({"train": {"data": np.zeros((1, 3072), np.uint8), "fine_labels": [100]}}, "labels that are not 0 to 99"),
        ({"meta": {"fine_label_names": ["a"]}}, "does not name 100 classes"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, message):
    folder_with(tmp_path, content)
    with pytest.raises(ValueError, match=message):
        SplitCIFAR100(data_root=tmp_path)


def test_counts_that_are_not_the_published_ones_are_told(tmp_path):
    folder_with(tmp_path, {})
    with pytest.warns(NonCanonicalCounts, match=r"200 training pictures \(published: 50,000\), 200 .*10,000"):
        SplitCIFAR100(data_root=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonCanonicalCounts)
        SplitCIFAR100(data_root=tmp_path, canonical=False)
