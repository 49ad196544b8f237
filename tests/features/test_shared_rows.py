"""Features extracted here are those of the shared feature files, row by row."""

from pathlib import PurePosixPath

import pytest
import torch
from PIL import Image

from avalanche_rewc.features import FeatureExtractor, open_set
from avalanche_rewc.streams import KINDS, load_features
from avalanche_rewc.streams.features import FILE_NAMES
from tests.real_data import real

HALF_ULP = 2.0**-11  # rounding to float16
ALLOWED = {"rtol": 1.1 * HALF_ULP, "atol": 2e-3}


def computed(inputs, rows):
    extractor = FeatureExtractor(inputs.kind, real("vgg16_features.npz"))
    pictures = inputs.rows()
    return extractor(torch.stack([pictures[row] for row in rows]))


def test_cifar100():
    inputs = open_set("cifar100", real("cifar-100-python").parent)
    shared = load_features(real("features") / FILE_NAMES["cifar100"], KINDS["cifar100"])
    assert torch.equal(inputs.labels, shared.labels)
    assert torch.equal(inputs.train, shared.train)
    rows = list(range(0, 60_000, 1_500))
    torch.testing.assert_close(computed(inputs, rows), shared.features[rows].float(), **ALLOWED)


@pytest.mark.parametrize(("name", "folder"), [("cub200", "mini/CUB_200_2011"), ("stanford40", "mini/Stanford40")])
def test_picture_sets(name, folder):
    inputs = open_set(name, real(folder).parent, canonical=False)
    shared = load_features(real("features") / FILE_NAMES[name], KINDS[name])
    places = {PurePosixPath(file).name: row for row, file in enumerate(shared.files)}
    names = [PurePosixPath(file).name for file in inputs.files]
    assert set(names) <= places.keys()
    rows = sorted({*range(0, len(names), 23), *greyscale(inputs)[:1], *past_the_edge(inputs)[:1]})
    there = [places[names[row]] for row in rows]
    assert shared.train[there].tolist() == inputs.train[rows].tolist()
    torch.testing.assert_close(computed(inputs, rows), shared.features[there].float(), **ALLOWED)


def greyscale(inputs):
    return [row for row, path in enumerate(inputs.dataset.paths) if Image.open(path).mode == "L"]


def past_the_edge(inputs):
    sizes = [Image.open(path).size for path in inputs.dataset.paths]
    boxes = inputs.dataset.boxes or []
    return [row for row, ((x, _, w, _), size) in enumerate(zip(boxes, sizes, strict=False)) if x + w > size[0]]
