"""The real mini set of CUB-200, whole; and damaged copies of it."""

import re

import pytest
import torch
from PIL import Image

from avalanche_rewc.models import VGG16GlobalPool
from avalanche_rewc.streams import NonCanonicalCounts, SplitCUB200
from avalanche_rewc.streams.cub200 import read_cub200
from tests.real_data import copy_of, real
from tests.streams.train import learn

GREYSCALE = 8
PAST_THE_EDGE = {
    "Chuck_Will_Widow_0051_796991.jpg",
    "Chuck_Will_Widow_0049_22747.jpg",
    "Mallard_0013_77619.jpg",
}


@pytest.fixture(scope="module")
def birds():
    return read_cub200(real("mini/CUB_200_2011"))


def stream(folder, n_experiences=2, **options):
    return SplitCUB200(n_experiences, data_root=folder.parent, canonical=False, **options)


def test_counts_and_labels(birds):
    assert birds.counts == {"training pictures": 96, "test pictures": 64, "classes": 8}
    assert torch.equal(torch.bincount(birds.pictures.targets), torch.full((8,), 20))
    for file, label in zip(birds.files, birds.pictures.targets.tolist(), strict=True):
        assert file.split("/")[1] == birds.class_names[label]


def test_every_picture_decodes_to_its_box(birds):
    greyscale, past = 0, set()
    for index, path in enumerate(birds.pictures.paths):
        with Image.open(path) as original:
            greyscale += original.mode == "L"
            width, height = original.size
        picture, _ = birds.pictures[index]
        x, y, w, h = birds.pictures.boxes[index]
        if x + w > width or y + h > height:
            past.add(path.name)
        assert picture.mode == "RGB"
        assert picture.size == (min(x + w, width) - x, min(y + h, height) - y)
    assert greyscale == GREYSCALE
    assert past == PAST_THE_EDGE


def test_a_crop_is_the_part_of_the_picture_the_table_says(birds):
    number, x, y, w, h = (
        int(float(v)) for v in (real("mini/CUB_200_2011") / "bounding_boxes.txt").open().readline().split()
    )
    picture, _ = birds.pictures[number - 1]
    with Image.open(birds.pictures.paths[number - 1]) as original:
        assert picture.tobytes() == original.convert("RGB").crop((x, y, x + w, y + h)).tobytes()


def test_samples_of_the_stream():
    benchmark = stream(real("mini/CUB_200_2011"), 4, seed=1, validation=0.25)
    assert [len(e.dataset) for e in benchmark.train_stream] == [18] * 4
    assert [len(e.dataset) for e in benchmark.valid_stream] == [6] * 4
    assert [len(e.dataset) for e in benchmark.test_stream] == [16] * 4
    sample, label, task = benchmark.test_stream[2].dataset[3]
    assert sample.shape == (3, 224, 224)
    assert label in (4, 5)
    assert task == 0
    assert -2.2 < float(sample.min()) < float(sample.max()) < 2.7


def test_whole_pictures(birds):
    whole = read_cub200(real("mini/CUB_200_2011"), whole_pictures=True)
    with Image.open(whole.pictures.paths[0]) as original:
        assert whole.pictures[0][0].size == original.size
    assert whole.pictures[0][0].size != birds.pictures[0][0].size
    cropped, uncropped = (stream(real("mini/CUB_200_2011"), whole_pictures=w).train_stream[0] for w in (False, True))
    assert not torch.equal(cropped.dataset[0][0], uncropped.dataset[0][0])


def test_counts_that_are_not_the_published_ones_are_told():
    folder = real("mini/CUB_200_2011")
    with pytest.warns(
        NonCanonicalCounts, match=r"96 training pictures \(published: 5,994\), 64 .*5,794.*8 classes .*200"
    ):
        SplitCUB200(2, data_root=folder.parent)


@pytest.mark.filterwarnings("error::avalanche_rewc.streams.NonCanonicalCounts")
def test_no_warning_if_another_set_is_meant():
    stream(real("mini/CUB_200_2011"))


def test_training_vgg16_end_to_end():
    torch.manual_seed(0)
    benchmark = stream(real("mini/CUB_200_2011"), 2, size=32)
    model = VGG16GlobalPool(weights=None, hidden=(32, 32))
    groups = model.parameter_groups(convolutions_lr=1e-4)
    before = [p.clone() for p in model.convolutions.parameters()]
    learn(model, benchmark.train_stream, benchmark.test_stream, parameters=groups, batch_size=48, samples_per_class=2)
    assert model.head.classifier.out_features == 8
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, model.convolutions.parameters(), strict=True))


def test_a_truncated_picture_is_named(tmp_path):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    benchmark = stream(folder)
    path = benchmark.data["train"][0].paths[2]
    path.write_bytes(path.read_bytes()[:3000])
    benchmark.train_stream[0].dataset[1]
    with pytest.raises(OSError, match=rf"{path.name} cannot be decoded .*[Tt]runcated"):
        benchmark.train_stream[0].dataset[2]
    path.write_bytes(b"this is no picture")
    with pytest.raises(OSError, match=rf"{path.name} cannot be decoded"):
        benchmark.train_stream[0].dataset[2]


def test_missing_pictures_are_named_with_the_way_out(tmp_path):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    gone = sorted((folder / "images" / "006.Mallard").iterdir())[:5]
    for path in gone:
        path.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"5 file.s. missing: .*Mallard.* and 2 more.*download=True.*CUB_200_2011.tgz"
    ):
        stream(folder)


def test_a_missing_table_or_set_is_named(tmp_path):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    (folder / "bounding_boxes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 file.s. missing: .*bounding_boxes.txt"):
        stream(folder)
    with pytest.raises(FileNotFoundError, match=r"5 file.s. missing: .*images.txt"):
        SplitCUB200(data_root=tmp_path / "nowhere")


def test_extra_files_are_ignored(tmp_path):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    (folder / "images" / "006.Mallard" / "._Mallard_0001.jpg").write_bytes(b"junk")
    (folder / "images" / "009.Unknown").mkdir()
    (folder / "images" / "009.Unknown" / "extra.jpg").write_bytes(b"junk")
    (folder / "attributes.txt").write_text("junk")
    assert sum(len(e.dataset) for s in stream(folder).streams.values() for e in s) == 160


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        (
            "images.txt",
            lambda t: t.replace("\n7 ", "\nseven "),
            r"images.txt, line 7: 'seven .* is not a number and 1 value",
        ),
        ("images.txt", lambda t: t + t.splitlines()[0], r"images.txt, line 161: number 1 comes twice"),
        ("images.txt", lambda t: "", "names no picture"),
        (
            "bounding_boxes.txt",
            lambda t: t.split("\n", 1)[1],
            r"images.txt and bounding_boxes.txt do not agree about picture 1",
        ),
        ("bounding_boxes.txt", lambda t: re.sub(r"^1 \S+", "1 wide", t), r"picture 1 has the box \['wide'"),
        ("train_test_split.txt", lambda t: t.replace("\n3 1", "\n3 2"), "picture 3 has '2', not 0 or 1"),
        (
            "image_class_labels.txt",
            lambda t: t.replace("\n3 1", "\n3 9"),
            "picture 3 is of class 9, not in classes.txt",
        ),
        ("train_test_split.txt", lambda t: t + "161 1\n", "do not agree about picture 161"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, table, change, message):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    text = (folder / table).read_text()
    assert change(text) != text
    (folder / table).write_text(change(text))
    with pytest.raises(ValueError, match=message):
        stream(folder)


def test_a_box_outside_its_picture_is_refused(tmp_path):
    folder = copy_of("mini/CUB_200_2011", tmp_path)
    boxes = (folder / "bounding_boxes.txt").read_text()
    (folder / "bounding_boxes.txt").write_text(re.sub(r"^1 .*", "1 5000.0 5.0 10.0 10.0", boxes))
    broken = read_cub200(folder)
    with pytest.raises(ValueError, match=r"\.jpg: the box .*5000.* has no part inside the picture"):
        broken.pictures[0]
