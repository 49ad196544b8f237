"""Read a pickle of lists, texts and arrays of bytes without trusting it: no code is run, no interpreter crashed.

numpy's own way to fill an array from a pickle trusts what it is given, and damaged bytes can crash the interpreter.
So everything that a pickled array consists of is unpickled as one of the stand-ins below, which only keep what they
are given; the array is made from that, with checks.
"""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np


def read_pickle(path: Path) -> Any:
    """The content of a pickle; arrays may be the values of a dictionary at its top, and are of unsigned bytes.

    Raises:
        ValueError: it cannot be read, or has something else in it.
    """
    try:
        content = _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        if isinstance(content, dict):
            content = {key: value.array() if isinstance(value, _Array) else value for key, value in content.items()}
        return content
    except OSError:
        raise
    except Exception as error:  # damaged bytes may ask for anything
        raise ValueError(f"{path} cannot be read ({error}): remove {path.parent} and fetch the set again") from error


class _Type:
    """A pickled dtype: its code, such as "u1"."""

    def __init__(self, code: Any = None, *flags: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """A pickled array: version, shape, type, whether in Fortran's order, and content."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, Any]:
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array has no content")
        _, shape, kind, fortran, content = self.state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1"):
            raise ValueError("an array is not of unsigned bytes")
        content = content.encode("latin1") if isinstance(content, str) else content  # as Python 2 wrote it
        if not isinstance(content, bytes) or not isinstance(shape, tuple) or not all(isinstance(n, int) for n in shape):
            raise ValueError("an array has no shape or no bytes")
        if min(shape, default=0) < 0 or math.prod(shape) != len(content):
            raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
        flat = np.frombuffer(content, np.uint8)
        array: np.ndarray[Any, Any] = flat.reshape(shape, order="F" if fortran else "C").copy()
        return array


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickles."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes encoded as {encoding!r}")
    return text.encode(encoding)


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle._Unpickler):
    """The one written in Python: the one in C makes room for any number of objects that the bytes announce."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of a data set")
        return _NAMES[module, name]
