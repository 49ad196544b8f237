"""What all streams have in common, on data whose every sample can be told apart."""

import random

import numpy as np
import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from torch.utils.data import DataLoader

from avalanche_rewc.streams import TensorClassificationDataset
from avalanche_rewc.streams.split import Source, split

CLASSES, PER_CLASS = 12, 10
LABELS = torch.arange(CLASSES).repeat(PER_CLASS)
NAMES = [f"class {c}" for c in range(CLASSES)]


def source(**transforms):
    """Sample i is the number i; its class is i mod 12. Test samples are 1000 + i."""
    numbers = torch.arange(len(LABELS), dtype=torch.float32).unsqueeze(1)
    train = TensorClassificationDataset(numbers, LABELS)
    test = TensorClassificationDataset(1000 + numbers, LABELS)
    return Source("numbers", train, test, NAMES, **transforms)


def cut(n_experiences=3, *, data=None, **options):
    defaults = {"seed": None, "class_order": None, "validation": 0.0, "validation_seed": 0, "task_labels": False}
    return split(data or source(), n_experiences=n_experiences, **{**defaults, **options})


def samples(experience):
    """Numbers and labels of an experience, through the loader a strategy uses."""
    batches = list(DataLoader(experience.dataset, batch_size=7))
    return torch.cat([b[0] for b in batches]).flatten().int().tolist(), torch.cat([b[1] for b in batches]).tolist()


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"class_order": list(reversed(range(CLASSES)))}])
def test_experience_k_brings_the_next_consecutive_classes(options):
    benchmark = cut(3, validation=0.2, **options)
    for stream in benchmark.streams.values():
        for k, experience in enumerate(stream):
            assert experience.classes_in_this_experience == list(range(4 * k, 4 * k + 4))
            assert set(samples(experience)[1]) == set(range(4 * k, 4 * k + 4))
            assert list(experience.previous_classes) == list(range(4 * k))
            assert list(experience.future_classes) == list(range(4 * k + 4, CLASSES))


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"class_order": [5, 1, 7, 2, 0, 11]}])
def test_labels_lead_back_to_the_data_sets_own_classes(options):
    benchmark = cut(3, validation=0.2, **options)
    for stream in benchmark.streams.values():
        for k, experience in enumerate(stream):
            for number, label in zip(*samples(experience), strict=True):
                original = number % 1000 % CLASSES
                assert benchmark.classes_order_original_ids[label] == original
                assert benchmark.class_names[label] == NAMES[original]
                assert benchmark.class_mapping[original] == label
                assert original in benchmark.original_classes_in_exp[k]


def test_every_sample_comes_exactly_once():
    benchmark = cut(4, seed=1, validation=0.3)
    seen = {name: [n for e in stream for n in samples(e)[0]] for name, stream in benchmark.streams.items()}
    assert sorted(seen["train"] + seen["valid"]) == list(range(len(LABELS)))
    assert sorted(seen["test"]) == list(range(1000, 1000 + len(LABELS)))


def test_classes_left_out_of_the_order_do_not_come():
    benchmark = cut(2, class_order=[5, 1, 7, 2])
    assert sorted({n % CLASSES for e in benchmark.train_stream for n in samples(e)[0]}) == [1, 2, 5, 7]
    assert benchmark.n_classes == 4
    assert benchmark.class_mapping.count(-1) == CLASSES - 4


def test_without_seed_or_order_classes_come_naturally():
    assert cut().classes_order_original_ids == list(range(CLASSES))


def test_a_seed_gives_the_order_avalanche_gives_and_always_the_same():
    data = source()
    with torch.random.fork_rng():
        theirs = nc_benchmark(data.train, data.test, n_experiences=3, task_labels=False, seed=7)
    assert cut(seed=7).classes_order_original_ids == theirs.classes_order_original_ids
    assert cut(seed=7).classes_order_original_ids == cut(seed=7).classes_order_original_ids
    assert cut(seed=7).classes_order_original_ids != cut(seed=8).classes_order_original_ids


@pytest.mark.parametrize(("validation", "expected"), [(0.2, 2), (0.34, 3), (0.01, 1), (4, 4), (1, 1)])
def test_validation_takes_the_same_number_of_every_class(validation, expected):
    benchmark = cut(3, validation=validation)
    for train, valid in zip(benchmark.train_stream, benchmark.valid_stream, strict=True):
        for c in valid.classes_in_this_experience:
            assert samples(valid)[1].count(c) == expected
            assert samples(train)[1].count(c) == PER_CLASS - expected


def test_validation_samples_depend_on_their_own_seed_only():
    def held(**options):
        return sorted(n for e in cut(3, validation=0.3, **options).valid_stream for n in samples(e)[0])

    assert held() == held(seed=5)
    assert held(validation_seed=1) != held(validation_seed=2)


def test_no_validation_no_stream():
    assert not hasattr(cut(), "valid_stream")
    assert set(cut().streams) == {"train", "test"}


def test_global_generators_are_left_alone():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    benchmark = cut(3, seed=4, validation=0.3, validation_seed=9)
    list(benchmark.train_stream)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


@pytest.mark.parametrize(("task_labels", "expected"), [(False, [0, 0, 0]), (True, [0, 1, 2])])
def test_task_labels(task_labels, expected):
    benchmark = cut(3, task_labels=task_labels, validation=0.2)
    for stream in benchmark.streams.values():
        assert [e.task_labels for e in stream] == [[label] for label in expected]
        assert [e.dataset[0][-1] for e in stream] == expected
        assert [set(e.dataset.targets_task_labels) for e in stream] == [{label} for label in expected]


def test_training_and_evaluation_have_their_own_transforms():
    data = source(train_transform=lambda x: x * 0 + 1, eval_transform=lambda x: x * 0 + 2)
    benchmark = cut(3, data=data, validation=0.2)
    values = {name: {float(e.dataset[0][0]) for e in stream} for name, stream in benchmark.streams.items()}
    assert values == {"train": {1.0}, "test": {2.0}, "valid": {2.0}}
    assert float(benchmark.train_stream[0].dataset.eval()[0][0]) == 2.0


def test_the_tensors_behind_an_experience_are_in_reach():
    benchmark = cut(3, seed=2, validation=0.2)
    for name, stream in benchmark.streams.items():
        for data, experience in zip(benchmark.data[name], stream, strict=True):
            assert data.inputs.flatten().int().tolist() == samples(experience)[0]
            assert data.targets.tolist() == samples(experience)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_experiences": 5}, "12 classes cannot be divided into 5 equal experiences.*1, 2, 3, 4, 6, 12"),
        ({"n_experiences": 24}, "cannot be divided into 24"),
        ({"n_experiences": 0}, "at least one"),
        ({"class_order": [0, 1, 2], "n_experiences": 2}, "3 classes cannot be divided into 2"),
        ({"class_order": [0, 1, 12]}, "no class 12"),
        ({"class_order": [0, 1, 1]}, "class 1 comes twice"),
        ({"class_order": []}, "empty"),
        ({"class_order": [0, 1, 2], "seed": 0}, "either seed or class_order"),
        ({"validation": -0.1}, "validation=-0.1"),
        ({"validation": 2.5}, "validation=2.5"),
        ({"validation": 10}, "takes 10 of the 10 training samples of class 0"),
        ({"validation": 0.99}, "none is left to train on"),
    ],
)
def test_impossible_wishes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        cut(**options)


def test_a_class_without_test_samples_is_refused():
    whole = source()
    rest = torch.nonzero(LABELS != 4).flatten()
    data = Source("numbers", whole.train, whole.test.pick(rest, LABELS[rest]), NAMES)
    with pytest.raises(ValueError, match=r"class 4 .class 4. has no test sample"):
        cut(data=data)


def test_inputs_and_targets_must_agree():
    with pytest.raises(ValueError, match="3 inputs but 2 targets"):
        TensorClassificationDataset(torch.zeros(3, 1), torch.zeros(2))
