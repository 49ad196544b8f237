"""The real mini set of Stanford-40, whole; and damaged copies of it."""

import pytest
import torch
from PIL import Image

from avalanche_rewc.models import VGG16GlobalPool
from avalanche_rewc.streams import NonCanonicalCounts, SplitStanford40
from avalanche_rewc.streams.stanford40 import read_stanford40
from tests.real_data import copy_of, real
from tests.streams.train import learn

ACTIONS = [
    "applauding",
    "feeding_a_horse",
    "jumping",
    "phoning",
    "reading",
    "throwing_frisby",
    "watching_TV",
    "writing_on_a_board",
]


@pytest.fixture(scope="module")
def actions():
    return read_stanford40(real("mini/Stanford40"))


def stream(folder, n_experiences=2, **options):
    return SplitStanford40(n_experiences, data_root=folder.parent, canonical=False, **options)


def test_counts_and_labels(actions):
    assert actions.counts == {"training pictures": 96, "test pictures": 64, "classes": 8}
    assert actions.class_names == ACTIONS
    for file, label in zip(actions.files, actions.pictures.targets.tolist(), strict=True):
        assert file.startswith(f"JPEGImages/{ACTIONS[label]}_")


def test_the_split_is_that_of_the_files(actions):
    for part, flag in (("train", True), ("test", False)):
        listed = (real("mini/Stanford40") / "ImageSplits" / f"{part}.txt").read_text().split()
        ours = [
            file.split("/")[1]
            for file, train in zip(actions.files, actions.train.tolist(), strict=True)
            if train == flag
        ]
        assert sorted(ours) == sorted(listed)


def test_every_picture_decodes_whole(actions):
    greyscale = 0
    for index, path in enumerate(actions.pictures.paths):
        with Image.open(path) as original:
            greyscale += original.mode == "L"
            size = original.size
        picture, _ = actions.pictures[index]
        assert (picture.mode, picture.size) == ("RGB", size)
    assert greyscale == 1


def test_crops_are_random_in_training_and_central_in_evaluation():
    benchmark = stream(real("mini/Stanford40"), 4, validation=0.25)
    dataset = benchmark.train_stream[0].dataset
    assert dataset[0][0].shape == (3, 224, 224)
    torch.manual_seed(0)
    assert not torch.equal(dataset[0][0], dataset[0][0])
    for fixed in (dataset.eval(), benchmark.valid_stream[0].dataset, benchmark.test_stream[0].dataset):
        assert torch.equal(fixed[0][0], fixed[0][0])
    whole = stream(real("mini/Stanford40"), 4, size=256, resize=256).test_stream[0].dataset[0][0]
    assert torch.equal(benchmark.test_stream[0].dataset[0][0], whole[:, 16:240, 16:240])


def test_sizes_must_fit():
    with pytest.raises(ValueError, match="resize=200 is smaller than the crop, size=224"):
        SplitStanford40(resize=200)


def test_counts_that_are_not_the_published_ones_are_told():
    folder = real("mini/Stanford40")
    with pytest.warns(
        NonCanonicalCounts, match=r"96 training pictures \(published: 4,000\), 64 .*5,532.*8 classes .*40"
    ):
        SplitStanford40(2, data_root=folder.parent)


def test_an_action_with_another_number_than_announced_is_told(tmp_path):
    folder = copy_of("mini/Stanford40", tmp_path)
    table = folder / "ImageSplits" / "actions.txt"
    table.write_bytes(table.read_bytes().replace(b"watching_TV\t\t\t20", b"watching_TV\t\t\t21"))
    with pytest.warns(NonCanonicalCounts, match="watching_TV: 20 listed, 21 announced"):
        read_stanford40(folder)


@pytest.mark.filterwarnings("error::avalanche_rewc.streams.NonCanonicalCounts")
def test_no_warning_if_another_set_is_meant():
    stream(real("mini/Stanford40"))


def test_training_vgg16_end_to_end():
    torch.manual_seed(0)
    benchmark = stream(real("mini/Stanford40"), 2, size=32, resize=36)
    model = VGG16GlobalPool(weights=None, hidden=(32, 32))
    groups = model.parameter_groups(convolutions_lr=1e-4)
    before = [p.clone() for p in model.convolutions.parameters()]
    learn(model, benchmark.train_stream, benchmark.test_stream, parameters=groups, batch_size=48, samples_per_class=2)
    assert model.head.classifier.out_features == 8
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, model.convolutions.parameters(), strict=True))


def test_a_truncated_picture_is_named(tmp_path):
    folder = copy_of("mini/Stanford40", tmp_path)
    benchmark = stream(folder)
    path = benchmark.data["test"][1].paths[4]
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(OSError, match=rf"{path.name} cannot be decoded .*[Tt]runcated"):
        benchmark.test_stream[1].dataset[4]


def test_missing_files_are_named_with_the_way_out(tmp_path):
    folder = copy_of("mini/Stanford40", tmp_path)
    gone = read_stanford40(folder).pictures.paths[7]
    gone.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"1 file.s. missing: .*{gone.name}.*download=True.*vision.stanford.edu"
    ):
        stream(folder)
    (folder / "ImageSplits" / "phoning_test.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"phoning_test\.txt"):
        stream(folder)
    with pytest.raises(FileNotFoundError, match=r"actions\.txt"):
        SplitStanford40(data_root=tmp_path / "nowhere")


def test_extra_files_are_ignored(tmp_path):
    folder = copy_of("mini/Stanford40", tmp_path)
    (folder / "JPEGImages" / "applauding_999.jpg").write_bytes(b"junk")
    (folder / "ImageSplits" / "flying_train.txt").write_text("flying_001.jpg\r\n")
    assert sum(len(e.dataset) for s in stream(folder).streams.values() for e in s) == 160


def test_annotations_are_not_needed(tmp_path):
    folder = copy_of("mini/Stanford40", tmp_path)
    for path in (folder / "XMLAnnotations").iterdir():
        path.unlink()
    assert stream(folder).n_classes == 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "actions.txt",
            "action_name\tnumber\r\nreading\tmany\r\n",
            r"actions.txt, line 2: .* is not an action and a number",
        ),
        ("actions.txt", "action_name\tnumber\r\n", "names no action"),
        ("reading_test.txt", "reading_018.jpg\r\n" * 2, r"Stanford40 name JPEGImages/reading_018.jpg more than once"),
        (
            "reading_test.txt",
            "phoning_141.jpg\r\n",
            r"line 1: 'phoning_141.jpg' is not the name of a picture of reading",
        ),
    ],
)
def test_damaged_tables_are_refused(tmp_path, name, content, message):
    folder = copy_of("mini/Stanford40", tmp_path)
    (folder / "ImageSplits" / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        stream(folder)
