"""Pictures on disk, decoded when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from avalanche_rewc.streams.root import missing_files
from avalanche_rewc.streams.trust import stays_inside

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")
"""What a picture may be. Pillow has decoders for much more, among them one that starts another program."""

Transform = Callable[[Any], Any]
Box = tuple[float, float, float, float]
"""x, y, width, height in pixels."""


class PictureDataset(Dataset[tuple[Image.Image, int]]):
    """Pictures by path, as RGB and, where boxes are given, cropped to them.

    Args:
        paths: of the pictures.
        targets: labels (N,).
        boxes: one for each picture, or None for whole pictures.
    """

    def __init__(self, paths: Sequence[Path], targets: Tensor, boxes: Sequence[Box] | None = None) -> None:
        """See the class."""
        if len(paths) != len(targets) or (boxes is not None and len(boxes) != len(paths)):
            raise ValueError(f"{len(paths)} pictures, {len(targets)} targets and boxes do not agree")
        self.paths = list(paths)
        self.targets = targets.to(torch.int64)
        self.boxes = None if boxes is None else list(boxes)

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        """A decoded picture and its label."""
        picture = decode(self.paths[index])
        if self.boxes is not None:
            picture = picture.crop(corners(self.boxes[index], picture.size, self.paths[index]))
        return picture, int(self.targets[index])

    def pick(self, indices: Tensor, targets: Tensor) -> PictureDataset:
        """The pictures at `indices` with new labels; nothing is decoded."""
        chosen = indices.tolist()
        boxes = None if self.boxes is None else [self.boxes[i] for i in chosen]
        return PictureDataset([self.paths[i] for i in chosen], targets, boxes)


@dataclass(frozen=True)
class PictureSet:
    """A whole set of pictures in its own order."""

    pictures: PictureDataset
    train: Tensor
    """(N,) bool: training picture or test picture."""
    files: list[str]
    """Names of the pictures relative to the set's folder, with forward slashes."""
    class_names: list[str]

    def part(self, train: bool) -> PictureDataset:
        """The training pictures, or the test pictures."""
        indices = torch.nonzero(self.train == train).flatten()
        return self.pictures.pick(indices, self.pictures.targets[indices])

    @property
    def counts(self) -> dict[str, int]:
        """Numbers to compare with the published ones."""
        return {
            "training pictures": int(self.train.sum()),
            "test pictures": int((~self.train).sum()),
            "classes": len(self.class_names),
        }


def decode(path: Path) -> Image.Image:
    """Read a picture as RGB, whatever it was (greyscale, palette, CMYK).

    Raises:
        OSError: it cannot be decoded; the message names it.
    """
    try:
        with Image.open(path, formats=FORMATS) as picture:
            decoded: Image.Image = picture.convert("RGB")
            return decoded
    except Exception as error:  # a decoder may raise anything on damaged bytes
        raise OSError(f"{path} cannot be decoded ({error}): fetch this picture again") from error


def corners(box: Box, size: tuple[int, int], path: Path) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a box, in whole pixels, no further than the picture (width, height) reaches."""
    x, y, width, height = box
    left, top = max(0, int(x)), max(0, int(y))
    right, bottom = min(size[0], int(x + width)), min(size[1], int(y + height))
    if right <= left or bottom <= top:
        raise ValueError(f"{path}: the box {box} has no part inside the picture of {size[0]}×{size[1]}")
    return left, top, right, bottom


def require_pictures(what: str, folder: Path, files: Sequence[str], how: str) -> list[Path]:
    """The paths of a set's pictures. Other files in its folders do not matter.

    Raises:
        ValueError: a name that leads out of the folder, or comes twice.
        FileNotFoundError: pictures are missing.
    """
    if outside := [file for file in files if not stays_inside(file)]:
        raise ValueError(f"{what}: its tables name {outside[0]!r}, which leads out of {folder}; refused")
    if len(set(files)) < len(files):
        twice, _ = Counter(files).most_common(1)[0]
        raise ValueError(f"{what}: its tables in {folder} name {twice} more than once")
    paths = [folder / file for file in files]
    if missing := [path for path in paths if not path.is_file()]:
        raise missing_files(what, missing, how)
    return paths


def resized(size: int) -> Transform:
    """To size×size, bilinear, without keeping the aspect; then a normalised tensor (3, size, size)."""
    return _chain(transforms.Resize((size, size)))


def cropped(resize: int, size: int, *, random: bool) -> Transform:
    """To resize×resize as `resized`, then a random or the central size×size; a normalised tensor (3, size, size)."""
    crop = transforms.RandomCrop(size) if random else transforms.CenterCrop(size)
    return _chain(transforms.Resize((resize, resize)), crop)


def _chain(*steps: Transform) -> Transform:
    chain: Transform = transforms.Compose(
        [*steps, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    )
    return chain
