"""Whole runs: what is written, runs that stop in the middle, and the command."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from avalanche_rewc.features import FeatureExtractor, extract, open_set
from avalanche_rewc.features.__main__ import main, parser
from avalanche_rewc.models import load_vgg16_weights
from avalanche_rewc.models.vgg16 import vgg16_convolutions
from avalanche_rewc.streams import KINDS, SplitFeatures, load_features
from tests.features.small_set import PICTURES, small_cub200

pytestmark = pytest.mark.filterwarnings("ignore::avalanche_rewc.streams.NonCanonicalCounts")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of random weights: whole runs do not need ImageNet's."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save({f"features.{name}": value for name, value in vgg16_convolutions(None).state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return small_cub200(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def inputs(root):
    return open_set("cub200", root, canonical=False)


@pytest.fixture(scope="module")
def extractor(inputs, weights):
    return FeatureExtractor(inputs.kind, weights)


@pytest.fixture(scope="module")
def expected(inputs, extractor):
    return extractor(torch.stack([inputs.rows()[row] for row in range(PICTURES)])).half()


def close(ours, expected):
    """Batches of another size round differently, by far less than float16 does."""
    return torch.allclose(ours.float(), expected.float(), rtol=2e-3, atol=1e-5)


def test_the_file_has_the_features_and_says_what_made_them(root, inputs, weights, expected, tmp_path):
    out = tmp_path / "new" / "birds.npz"
    arguments = ["--set", "cub200", "--data-root", str(root), "--weights", str(weights), "--out", str(out)]
    assert main(["extract", *arguments, "--batch-size", "4", "--quiet"]) == 0
    sha = load_vgg16_weights(weights).sha256
    content = load_features(out, KINDS["cub200"], require_metadata=True, weights_sha256=sha, canonical=False)
    assert close(content.features, expected)
    assert content.features.dtype == torch.float16
    assert torch.equal(content.labels, inputs.labels)
    assert torch.equal(content.train, inputs.train)
    assert list(content.files) == inputs.files
    assert content.metadata["set"] == "cub200"
    assert content.metadata["weights"] == "random.pth"
    assert content.metadata["layer"] == "conv5_3 after ReLU"
    assert content.metadata["pooling"] == "global max"
    assert "box crop, 224×224" in content.metadata["preprocessing"]
    assert (content.metadata["train"], content.metadata["test"]) == (3, 3)
    assert [path.name for path in out.parent.iterdir()] == ["birds.npz"]
    benchmark = SplitFeatures(out, 2, kind=KINDS["cub200"], require_metadata=True)
    assert benchmark.class_names == ["001.Brewer_Blackbird", "002.Chuck_will_Widow"]


class Counting(torch.nn.Module):
    """An extractor that counts the pictures it sees and may fail after some."""

    def __init__(self, extractor, fail_after=None):
        super().__init__()
        self.kind, self.inner, self.seen, self.fail_after = extractor.kind, extractor, 0, fail_after
        self.weights_name, self.weights_sha256 = extractor.weights_name, extractor.weights_sha256

    def forward(self, x):
        if self.fail_after is not None and self.seen >= self.fail_after:
            raise KeyboardInterrupt
        self.seen += len(x)
        return self.inner(x)


def interrupted(inputs, extractor, out, after=4):
    with pytest.raises(KeyboardInterrupt):
        extract(inputs, Counting(extractor, after), out, batch_size=2, progress=False)


def test_an_interrupted_run_goes_on_where_it_stopped(inputs, extractor, expected, tmp_path):
    out = tmp_path / "birds.npz"
    interrupted(inputs, extractor, out)
    assert not out.exists()
    with (tmp_path / "birds.npz.partial").open("ab") as rows:
        rows.write(b"half a row")  # what a run leaves that was killed while it wrote
    counting = Counting(extractor)
    extract(inputs, counting, out, batch_size=2, progress=False)
    assert counting.seen == PICTURES - 4
    assert close(load_features(out).features, expected)
    assert [path.name for path in tmp_path.iterdir()] == ["birds.npz"]


def test_an_interrupted_run_with_other_weights_is_not_continued(inputs, extractor, expected, tmp_path):
    out = tmp_path / "birds.npz"
    interrupted(inputs, extractor, out)
    other = Counting(extractor)
    other.weights_sha256 = "other"
    with pytest.raises(ValueError, match=r"left by a run with another weights_sha256: .*--restart"):
        extract(inputs, other, out, progress=False)
    counting = Counting(extractor)
    extract(inputs, counting, out, restart=True, progress=False)
    assert counting.seen == PICTURES
    assert close(load_features(out).features, expected)


def test_a_picture_that_changed_in_between_is_noticed(extractor, tmp_path):
    root = small_cub200(tmp_path)
    out = tmp_path / "birds.npz"
    interrupted(open_set("cub200", root), extractor, out)
    Image.new("RGB", (500, 500)).save(open_set("cub200", root).dataset.paths[0])
    with pytest.raises(ValueError, match="another pictures_sha256"):
        extract(open_set("cub200", root), extractor, out, progress=False)


def test_a_damaged_picture_stops_the_run_and_the_rest_is_kept(weights, extractor, tmp_path, capsys):
    root = small_cub200(tmp_path)
    path = open_set("cub200", root).dataset.paths[4]
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    arguments = ["extract", "--set", "cub200", "--data-root", str(root), "--weights", str(weights), "--quiet"]
    assert main([*arguments, "--batch-size", "2"]) == 1
    assert f"{path.name} cannot be decoded" in capsys.readouterr().err
    assert (root / "features" / "cub200_vgg16_conv5max.npz.partial").stat().st_size == 4 * 512 * 2


def test_existing_files_are_not_overwritten_unasked(inputs, extractor, tmp_path):
    out = tmp_path / "birds.npz"
    out.write_bytes(b"precious")
    with pytest.raises(FileExistsError, match="--overwrite"):
        extract(inputs, extractor, out)
    assert out.read_bytes() == b"precious"
    extract(inputs, extractor, out, overwrite=True, progress=False)
    assert len(load_features(out).features) == PICTURES


def test_wrong_wishes_are_refused(inputs, extractor, weights, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        extract(inputs, extractor, tmp_path / "birds.h5")
    with pytest.raises(ValueError, match="made for stanford40, the pictures are of cub200"):
        extract(inputs, FeatureExtractor(KINDS["stanford40"], weights), tmp_path / "birds.npz")
    with pytest.raises(ValueError, match="'mnist' is not one of 'cifar100', 'cub200', 'stanford40'"):
        open_set("mnist")
    assert main(["extract", "--set", "cub200", "--data-root", str(tmp_path), "--weights", str(weights)]) == 1
    assert "images.txt" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parser().parse_args(["extract", "--set", "cub200", "--batch-size", "0"])


def test_pool5_is_for_small_pictures(weights):
    extractor = FeatureExtractor(KINDS["cifar100"], weights)
    assert extractor(torch.zeros(2, 3, 32, 32)).shape == (2, 512)
    with pytest.raises(ValueError, match="32×32 pictures only, not for 64×64"):
        extractor(torch.zeros(2, 3, 64, 64))


def test_show_tells_what_is_in_a_file(inputs, extractor, tmp_path, capsys):
    extract(inputs, extractor, tmp_path / "birds.npz", progress=False)
    assert main(["show", str(tmp_path / "birds.npz")]) == 0
    shown = capsys.readouterr().out
    assert "6 rows of 512 numbers, 3 to train, 3 to test" in shown
    assert json.loads(shown[shown.index("{") :])["weights_sha256"] == extractor.weights_sha256
    np.savez(tmp_path / "plain.npz", features=np.zeros((1, 2)), labels=np.zeros(1, int), train=np.ones(1, bool))
    main(["show", str(tmp_path / "plain.npz")])
    assert "does not say what made it" in capsys.readouterr().out


def test_a_killed_command_goes_on(root, weights, expected, tmp_path, capsys):
    out = tmp_path / "birds.npz"
    arguments = ["extract", "--set", "cub200", "--data-root", str(root), "--weights", str(weights), "--out", str(out)]
    command = [sys.executable, "-m", "avalanche_rewc.features", *arguments, "--batch-size", "1"]
    partial = tmp_path / "birds.npz.partial"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as first:
        limit = time.monotonic() + 60
        while not partial.exists() and first.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)
        first.kill()
    done = partial.stat().st_size // 1024
    assert 1 <= done < PICTURES
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert f"{done}/{PICTURES}" in told.err  # the bar starts where the first run ended
    assert "6 features in" in told.out
    assert close(load_features(out).features, expected)
