"""A CUB-200 of six real pictures, for whole runs of the command."""

from pathlib import Path

from tests.real_data import copy_of

PICTURES = 6


def small_cub200(folder: Path) -> Path:
    """Three training and three test pictures of two classes, in the set's layout under `folder`; returns `folder`."""
    birds = copy_of("mini/CUB_200_2011", folder)
    rows = [line.split() for line in (birds / "image_class_labels.txt").read_text().splitlines()]
    split = dict(line.split() for line in (birds / "train_test_split.txt").read_text().splitlines())
    kept = []
    for label, train, count in (("1", "1", 2), ("1", "0", 1), ("2", "1", 1), ("2", "0", 2)):
        kept += [number for number, of in rows if of == label and split[number] == train][:count]
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt", "bounding_boxes.txt"):
        lines = (birds / name).read_text().splitlines()
        (birds / name).write_text("\n".join(line for line in lines if line.split()[0] in kept) + "\n")
    (birds / "classes.txt").write_text("\n".join((birds / "classes.txt").read_text().splitlines()[:2]) + "\n")
    return folder
