"""MNIST, whole, against Avalanche's own loader; and damaged files."""

import gzip
import shutil
import warnings

import pytest
import torch
from avalanche.benchmarks import SplitMNIST

from avalanche_rewc.models import LeNet
from avalanche_rewc.streams import DisjointMNIST, NonCanonicalCounts
from avalanche_rewc.streams.mnist import ARCHIVES, read_idx
from tests.real_data import real
from tests.streams.train import learn, shorten


@pytest.fixture(scope="module")
def mnist():
    root = real("MNIST/raw").parent.parent
    return DisjointMNIST(2, data_root=root)


def test_the_papers_split(mnist):
    assert mnist.original_classes_in_exp == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}]
    assert [len(e.dataset) for e in mnist.train_stream] == [30_596, 29_404]
    assert [len(e.dataset) for e in mnist.test_stream] == [5_139, 4_861]


def test_pictures_are_those_avalanche_reads_padded_to_32(mnist):
    root = real("MNIST/raw").parent.parent
    theirs = SplitMNIST(
        2, fixed_class_order=list(range(10)), train_transform=None, eval_transform=None, dataset_root=root
    )
    for data, other in zip(mnist.data["test"], theirs.test_stream, strict=True):
        wanted = sorted((y, x.flatten().mul(255).round().byte().numpy().tobytes()) for x, y, _ in other.dataset)
        assert data.inputs.shape[1:] == (1, 32, 32)
        centre = data.inputs[:, :, 2:30, 2:30]
        assert torch.count_nonzero(data.inputs) == torch.count_nonzero(centre)
        pixels = centre.flatten(1).mul(255).round().byte().numpy()
        assert sorted((y, x.tobytes()) for x, y in zip(pixels, data.targets.tolist(), strict=True)) == wanted


def test_the_whole_training_set_has_the_known_mean_and_deviation(mnist):
    pixels = torch.cat([d.inputs[:, :, 2:30, 2:30] for d in mnist.data["train"]])
    assert float(pixels.mean()) == pytest.approx(0.1307, abs=5e-5)
    assert float(pixels.std()) == pytest.approx(0.3081, abs=5e-5)


def test_other_numbers_of_experiences_and_no_padding():
    root = real("MNIST/raw").parent.parent
    benchmark = DisjointMNIST(5, data_root=root, padding=0, seed=1, validation=40)
    assert benchmark.n_experiences == 5
    assert benchmark.data["test"][0].inputs.shape[1:] == (1, 28, 28)
    assert [len(e.dataset) for e in benchmark.valid_stream] == [80] * 5


def test_training_end_to_end(mnist):
    torch.manual_seed(0)
    train, test = shorten(mnist, "train", 2000), shorten(mnist, "test", 400)
    first, last = learn(LeNet(), train, test, epochs=3, batch_size=50)
    assert first[0] > 0.9
    assert min(last) > 0.4  # chance is 0.1


def test_packed_files_are_enough(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ARCHIVES:
        shutil.copy(real("MNIST/raw") / f"{name}.gz", raw)
    packed = DisjointMNIST(2, data_root=tmp_path)
    assert [len(e.dataset) for e in packed.test_stream] == [5_139, 4_861]


def test_missing_files_are_named_with_the_way_out(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"4 file.*train-images-idx3-ubyte.*download=True.*REWC_DATA"):
        DisjointMNIST(data_root=tmp_path)


ONE_PICTURE = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(784)


DAMAGES = {
    "cut off": (lambda: gzip.compress(ONE_PICTURE)[:-12], "damaged"),
    "no gzip": (lambda: b"no gzip", "damaged"),
    "a value short": (lambda: gzip.compress(ONE_PICTURE[:-1]), "783 values, its header says .1, 28, 28"),
    "another format": (lambda: gzip.compress(b"GIF8" + ONE_PICTURE), "not an idx file"),
    "empty": (lambda: gzip.compress(b""), "not an idx file"),
    "one picture": (
        lambda: gzip.compress(ONE_PICTURE),
        "train has pictures of shape .1, 28, 28. and labels of shape .60000,., which do not go together",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused(tmp_path, damage):
    make, message = DAMAGES[damage]
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ARCHIVES:
        shutil.copy(real("MNIST/raw") / f"{name}.gz", raw)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(make())
    with pytest.raises(ValueError, match=message):
        DisjointMNIST(data_root=tmp_path)


def few(folder, per_class=2):
    """MNIST of so many blank pictures of every digit, for training and test."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    count = 10 * per_class
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28])
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + bytes(784 * count))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            bytes([0, 0, 8, 1, 0, 0, 0, count, *range(10)]) + bytes(range(10))
        )


def test_counts_that_are_not_the_published_ones_are_told(tmp_path):
    few(tmp_path)
    with pytest.warns(NonCanonicalCounts, match=r"20 training pictures \(published: 60,000\), 20 .*10,000"):
        DisjointMNIST(data_root=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonCanonicalCounts)
        DisjointMNIST(data_root=tmp_path, canonical=False)


def test_an_idx_file_of_any_shape(tmp_path):
    (tmp_path / "a").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3]) + bytes(range(6)))
    assert read_idx(tmp_path / "a").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_negative_padding_is_refused(tmp_path):
    with pytest.raises(ValueError, match="padding=-1"):
        DisjointMNIST(data_root=tmp_path, padding=-1)
