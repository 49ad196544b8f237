"""Streams over the real feature files, and files that are refused."""

import json

import numpy as np
import pytest
import torch

from avalanche_rewc.models import FeatureMLP
from avalanche_rewc.streams import KINDS, NonCanonicalCounts, SplitFeatures, SplitPaperFeatures, load_features
from avalanche_rewc.streams.features import FILE_NAMES
from tests.real_data import real
from tests.streams.train import learn, shorten


def test_cifar100_features_are_a_stream():
    benchmark = SplitPaperFeatures("cifar100", 4, data_root=real("features").parent, seed=0, validation=0.1)
    assert [len(e.dataset) for e in benchmark.train_stream] == [11_250] * 4
    assert [len(e.dataset) for e in benchmark.test_stream] == [2_500] * 4
    assert benchmark.data["train"][0].inputs.dtype == torch.float32


def test_cub200_features_are_a_stream_with_the_birds_names():
    benchmark = SplitPaperFeatures("cub200", 4, data_root=real("features").parent, class_order=range(200))
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 5_994
    assert sum(len(e.dataset) for e in benchmark.test_stream) == 5_794
    assert (benchmark.class_names[0], benchmark.class_names[199]) == (
        "001.Black_footed_Albatross",
        "200.Common_Yellowthroat",
    )


def test_stanford40_features_are_a_stream_with_the_actions_names():
    benchmark = SplitPaperFeatures("stanford40", 4, data_root=real("features").parent)
    assert sum(len(e.dataset) for e in benchmark.train_stream) == 4_000
    assert sum(len(e.dataset) for e in benchmark.test_stream) == 5_532
    assert (benchmark.class_names[32], benchmark.class_names[36]) == ("throwing_frisby", "watching_TV")


@pytest.mark.parametrize(("name", "best_chance"), [("cifar100", 1 / 50), ("cub200", 1 / 100), ("stanford40", 1 / 20)])
def test_training_end_to_end(name, best_chance):
    torch.manual_seed(0)
    benchmark = SplitPaperFeatures(name, 2, data_root=real("features").parent)
    train, test = shorten(benchmark, "train", 1000), shorten(benchmark, "test", 500)
    first, last = learn(FeatureMLP(), train, test, epochs=5, batch_size=50, samples_per_class=5)
    assert first[0] > 5 * best_chance
    assert min(last) > best_chance


def test_an_unknown_set_is_refused():
    with pytest.raises(ValueError, match=r"'imagenet' is not one of 'cifar100', 'cub200', 'stanford40'"):
        SplitPaperFeatures("imagenet")


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cub200_vgg16_conv5max.npz: no such feature file.*extract"):
        SplitPaperFeatures("cub200", data_root=tmp_path)


METADATA = {"format": 1, **KINDS["cub200"].identity, "weights": "w", "weights_sha256": "abc", "class_names": ["a", "b"]}


def write(path, *, metadata=METADATA, **changed):
    """A small file of two classes, five rows each, three of them to train."""
    arrays = {
        "features": np.arange(5120, dtype=np.float16).reshape(10, 512) / 100,
        "labels": np.repeat([0, 1], 5),
        "train": np.array([True, True, True, False, False] * 2),
        **changed,
    }
    if metadata is not None:
        arrays["metadata"] = np.array(json.dumps(metadata))
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_what_was_written_is_read(tmp_path):
    content = load_features(write(tmp_path / "a.npz"), KINDS["cub200"], weights_sha256="abc", canonical=False)
    assert content.features[3, 5] == np.float16((3 * 512 + 5) / np.float16(100))
    assert content.train.sum() == 6
    benchmark = SplitFeatures(tmp_path / "a.npz", 2, kind=KINDS["cub200"], canonical=False)
    assert benchmark.class_names == ["a", "b"]
    assert [len(e.dataset) for e in benchmark.train_stream] == [3, 3]


def test_a_file_of_another_size_than_the_published_set_is_told(tmp_path):
    with pytest.warns(NonCanonicalCounts, match=r"6 training rows \(published: 5,994\)"):
        SplitFeatures(write(tmp_path / "a.npz"), 2, kind=KINDS["cub200"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {**METADATA, "set": "stanford40"}}, "its set is 'stanford40', asked for 'cub200'"),
        ({"metadata": {**METADATA, "layer": "pool5"}}, "its layer is 'pool5', asked for 'conv5_3 after ReLU'"),
        ({"metadata": {**METADATA, "pooling": "global mean"}}, "its pooling is 'global mean'"),
        ({"metadata": {**METADATA, "preprocessing": "whole"}}, "its preprocessing is 'whole'"),
        (
            {"metadata": {**METADATA, "weights_sha256": "def"}},
            "was made by weights w .def., not by those with sha256 abc",
        ),
        ({"metadata": {**METADATA, "format": 2}}, "not of format 1"),
        ({"metadata": None}, "does not say what made it"),
        ({"features": np.zeros((10, 4), np.float16)}, "4 numbers per sample, cub200 features have 512"),
        ({"features": np.zeros((9, 512), np.float16)}, "9 features, 10 labels and 10 marks do not agree"),
        ({"features": np.full((10, 512), np.nan, np.float16)}, "not finite"),
        ({"features": np.zeros((10, 512), np.int16)}, "not numbers"),
        ({"labels": None}, "is not a feature file: it has"),
        ({"files": np.array(["a.jpg"])}, "10 features but 1 names"),
    ],
)
def test_files_that_do_not_match_are_refused(tmp_path, changes, message):
    path = write(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=message):
        load_features(path, KINDS["cub200"], weights_sha256="abc")


def test_without_metadata_counts_decide(tmp_path):
    with pytest.raises(ValueError, match="it is not of that set"):
        load_features(write(tmp_path / "a.npz", metadata=None), KINDS["cub200"])
    shared = real("features") / FILE_NAMES["stanford40"]
    assert load_features(shared, KINDS["stanford40"]).metadata is None
    with pytest.raises(ValueError, match="it is not of that set"):
        load_features(shared, KINDS["cub200"])
    with pytest.raises(ValueError, match="does not say what made it"):
        load_features(shared, KINDS["stanford40"], require_metadata=True)


def test_damaged_files_are_refused(tmp_path):
    path = write(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as a feature file"):
        load_features(path)
    path.write_bytes(b"junk")
    with pytest.raises(ValueError, match=r"a\.npz cannot be read as a feature file"):
        load_features(path)


def test_pickles_in_a_feature_file_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match=r"cannot be read as a feature file .*allow_pickle=False"):
        load_features(tmp_path / "a.npz")
