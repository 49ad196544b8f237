"""Real data for tests, where it is; otherwise they are skipped and say how to get it."""

import shutil
from pathlib import Path

import pytest

from avalanche_rewc.streams import resolve_data_root

HOW = {
    "MNIST/raw": "DisjointMNIST(download=True) fetches it (12 MB)",
    "cifar-100-python": "SplitCIFAR100(download=True) fetches it (169 MB)",
    "mini/CUB_200_2011": "pictures of 8 classes of CUB-200-2011 in the set's own layout",
    "mini/Stanford40": "pictures of 8 actions of Stanford-40 in the set's own layout",
    "features": "python -m avalanche_rewc.features extract makes the three feature files from the whole sets",
    "vgg16_features.npz": "numpy.savez of torchvision's vgg16 convolutions, names as in its state_dict",
}


def real(name: str) -> Path:
    """A part of the data root, or a skipped test."""
    path = resolve_data_root().absolute() / name
    if not path.exists():
        pytest.skip(f"{path} is missing ({HOW[name]}); REWC_DATA names the folder of all data sets")
    return path


def copy_of(name: str, folder: Path) -> Path:
    """A copy of a set that a test may damage, at the place where a stream with data_root=folder looks for it."""
    source = real(name)
    return Path(shutil.copytree(source, folder / source.name))
