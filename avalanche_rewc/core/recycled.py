"""Tensors in memory that has been used before.

On a CPU a fresh tensor of a megabyte costs several times the arithmetic that fills it: the operating system hands it
out page by page, and takes it back when the tensor is gone. What is needed in every step keeps its memory here. Devices
with an allocator of torch's own need none of this.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import torch
from torch import Tensor

WORTH_IT = 2**16
"""Bytes. Smaller tensors come from memory that the process keeps anyway."""
ALIGNMENT = 64


class Recycler:
    """Gives out empty CPU tensors whose memory comes back when nobody holds them, or a view of them, any more."""

    def __init__(self) -> None:
        self._memory: dict[int, list[bytearray]] = defaultdict(list)

    def __getstate__(self) -> dict[str, object]:
        return {}  # a copy begins with nothing

    def __setstate__(self, state: dict[str, object]) -> None:
        self._memory = defaultdict(list)

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor on the device and in the precision of `like`, for the taker alone."""
        numel = torch.Size(shape).numel()
        size = numel * like.element_size()
        if like.device.type != "cpu" or size < WORTH_IT:
            return like.new_empty(shape)
        memory = self._free(size + ALIGNMENT)
        start = -torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr() % ALIGNMENT
        # In place: a view keeps another tensor with the same storage, and to such ones autograd does not add in place.
        return torch.frombuffer(memory, dtype=like.dtype, count=numel, offset=start).resize_(shape)

    def _free(self, size: int) -> bytearray:
        """Memory that no tensor refers to; a tensor's storage holds a reference to its own."""
        known = self._memory[size]
        for index in range(len(known)):
            if sys.getrefcount(known[index]) == _UNUSED:
                return known[index]
        known.append(bytearray(size))
        return known[-1]


def _references() -> int:
    """What `sys.getrefcount` says of an object in a list that nobody else refers to."""
    held = [bytearray(1)]
    return sys.getrefcount(held[0])


_UNUSED = _references()
