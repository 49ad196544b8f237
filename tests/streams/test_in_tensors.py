"""Samples found in tensors are bit by bit what reading gives; anything that is not plain is read."""

import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TransformGroups
from avalanche.benchmarks.utils.flat_data import ConstantSequence

from avalanche_rewc.streams import SplitDigits, in_tensors
from avalanche_rewc.streams.batches import _read
from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.in_tensors import fields_in_tensors


def leaf(count=20, seed=0, kind=TensorClassificationDataset, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return kind(torch.randn(count, 3, 2, generator=generator).to(dtype), torch.arange(count) % 5)


def wrapped(data, task=0, **options):
    attributes = [
        DataAttribute(list(range(len(data))), "numbers"),
        DataAttribute(ConstantSequence(task, len(data)), "targets_task_labels", use_in_getitem=True),
    ]
    return AvalancheDataset([data], data_attributes=attributes, **options)


def read(dataset):
    return tuple(dataset.collate_fn([dataset[i] for i in range(len(dataset))]))


def others_transformed():
    """Transforms, but of the other group: layers that Avalanche does not flatten, and that do nothing."""
    groups = TransformGroups({"train": None, "eval": (lambda x: 2 * x, None)})
    return wrapped(leaf(), transform_groups=groups)


PLAIN = {
    "whole": lambda: wrapped(leaf()),
    "subset": lambda: wrapped(leaf()).subset([7, 3, 3, 19, 0]),
    "subset of a subset": lambda: wrapped(leaf()).subset([7, 3, 5, 19, 0, 11]).subset([5, 1, 1]),
    "concatenation": lambda: wrapped(leaf(), 0).concat(wrapped(leaf(9, seed=1), 4)),
    "replay": lambda: (
        wrapped(leaf(), 0).subset([3, 1, 8]).concat(wrapped(leaf(9, seed=1), 1).subset([8, 0])).subset([4, 0, 3, 2])
    ),
    "one set twice": lambda: wrapped(leaf()).subset([3, 1]).concat(wrapped(leaf()).subset([2, 3])),
    "transforms of another group": others_transformed,
    "subset of that": lambda: others_transformed().subset([4, 2]).concat(wrapped(leaf(6, seed=2))).subset([1, 7, 0]),
    "one sample": lambda: wrapped(leaf(1)),
    "no task label": lambda: AvalancheDataset([leaf()]).subset([2, 0]),
    "half precision": lambda: wrapped(leaf(dtype=torch.float16)).subset([1, 0]),
}


@pytest.mark.parametrize("name", PLAIN)
def test_found_is_what_is_read(name):
    dataset = PLAIN[name]()
    found, expected = fields_in_tensors(dataset), read(dataset)
    assert found is not None
    assert len(found) == len(expected)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("stream", ["train", "valid", "test"])
def test_streams_of_this_library_are_found(stream):
    benchmark = SplitDigits(n_experiences=5, validation=0.2)
    for experience in benchmark.streams[stream]:
        found = fields_in_tensors(experience.dataset)
        assert found is not None
        assert all(torch.equal(a, b) for a, b in zip(found, read(experience.dataset), strict=True))


class Derived(TensorClassificationDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x + 1 if index == 1 else x), y  # one that is not compared


class OtherSamples(AvalancheDataset):
    def __getitem__(self, index):
        x, *rest = super().__getitem__(index)
        return [x + 1, *rest]


READ = {
    "transform": lambda: wrapped(leaf(), transform_groups=TransformGroups({"train": (lambda x: 2 * x, None)})),
    "transform of labels": lambda: wrapped(
        leaf(), transform_groups=TransformGroups({"train": (None, lambda y: y + 1)})
    ),
    "frozen transform": lambda: wrapped(
        leaf(), transform_groups=TransformGroups({"train": (lambda x: 2 * x, None)})
    ).freeze_transforms(),
    "one part transformed": lambda: wrapped(leaf()).concat(READ["transform"]()),
    "derived data": lambda: wrapped(leaf(1000, kind=Derived)),
    "derived data set": lambda: OtherSamples([leaf()]),
    "own collate": lambda: AvalancheDataset([leaf()], collate_fn=lambda b: (torch.stack([x + 1 for x, _ in b]),)),
    "other precision in a part": lambda: wrapped(leaf()).concat(wrapped(leaf(dtype=torch.float64))),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_not_plain_is_read(name):
    dataset = READ[name]()
    assert fields_in_tensors(dataset) is None
    if name != "other precision in a part":  # which cannot be collated either
        assert all(torch.equal(a, b) for a, b in zip(_read(dataset), read(dataset), strict=True))


def test_nothing_is_read_but_a_few_samples(monkeypatch):
    reads = []
    whole = TensorClassificationDataset.__getitem__
    monkeypatch.setattr(TensorClassificationDataset, "__getitem__", lambda s, i: reads.append(i) or whole(s, i))
    assert len(_read(wrapped(leaf(1000)))[0]) == 1000
    assert len(reads) == in_tensors.COMPARED + 4  # and twice two, for random transforms


def test_a_sample_that_would_differ_is_noticed(monkeypatch):
    """If Avalanche came to mean something else by its private parts."""
    dataset = wrapped(leaf()).subset([7, 3, 5])
    monkeypatch.setattr(in_tensors, "_picked", lambda leaf, chosen: (leaf.inputs[chosen.flip(0)], leaf.targets[chosen]))
    assert fields_in_tensors(dataset) is None


def test_another_version_of_avalanche_is_read(monkeypatch):
    dataset = wrapped(leaf())
    del dataset._flat_data._transform_groups
    assert fields_in_tensors(dataset) is None


def test_a_random_transform_is_refused_as_before():
    noisy = wrapped(leaf(), transform_groups=TransformGroups({"train": (lambda x: x + torch.rand(1), None)}))
    with pytest.raises(ValueError, match="random transforms"):
        _read(noisy)
