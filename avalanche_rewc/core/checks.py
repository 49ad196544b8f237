"""Checks of options, with errors that name the option and what it may be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from torch import Tensor

SHOWN_DIFFERENCES = 5


def one_of(option: str, value: object, allowed: Sequence[str], more: str = "") -> None:
    """Refuse a value that is not among the allowed ones; suggest a close one."""
    if not isinstance(value, str) or value not in allowed:
        close = difflib.get_close_matches(value, allowed, 1) if isinstance(value, str) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{option}={shown(value)} is not one of {', '.join(map(repr, allowed))}{more}{hint}")


def whole_number(option: str, value: object, low: int, otherwise: str) -> None:
    """Refuse what is neither None nor a whole number ≥ `low`; `otherwise` says what None means."""
    good = isinstance(value, Integral) and not _is_bool(value) and int(value) >= low
    if value is not None and not good:
        raise ValueError(f"{option}={shown(value)} must be a whole number ≥ {low}, or None {otherwise}")


def number(option: str, value: object, high: float = math.inf) -> None:
    """Refuse what is not a finite number between 0 and `high`."""
    try:
        amount = float(value) if isinstance(value, Real) and not _is_bool(value) else math.nan
    except OverflowError:  # a whole number of more than 308 digits
        amount = math.inf
    if not (math.isfinite(amount) and 0 <= amount <= high):
        what = "a finite number ≥ 0" if high == math.inf else f"a number between 0 and {high:g}"
        raise ValueError(f"{option}={shown(value)} must be {what}")


def shown(value: object) -> str:
    """A value in an error message: short, and whatever its own `repr` may do."""
    try:
        text = repr(value)
    except Exception:  # such as a whole number of thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:200]}…"


def _is_bool(value: object) -> bool:
    """True is a whole number to Python, and never what was meant."""
    return isinstance(value, bool)


def differences(here: Any, there: Any, name: str = "", other: str = "the checkpoint") -> list[str]:
    """In words, where two pieces of plain data differ; `there` is the `other`'s. Of tensors only the shapes count."""
    if isinstance(here, dict) and isinstance(there, dict):
        names = {key: f"{name}: {key}" if name else str(key) for key in [*here, *there]}
        both = [differences(here[key], there[key], names[key], other) for key in here if key in there]
        found = [line for lines in both for line in lines]
        found += [f"{names[key]} is not in {other}" for key in here if key not in there]
        return found + [f"{names[key]} is in {other} and not here" for key in there if key not in here]
    if isinstance(here, list | tuple) and isinstance(there, list | tuple) and len(here) == len(there):
        if not any(isinstance(item, dict | list | tuple | Tensor) for item in (*here, *there)):
            return [] if all(map(_same, here, there)) else [f"{name} is {here!r} here and {there!r} in {other}"]
        pairs = enumerate(zip(here, there, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, f"{name}[{i}]", other)]
    if isinstance(here, Tensor) and isinstance(there, Tensor):
        here, there = (f"a tensor {tuple(value.shape)}" for value in (here, there))
    return [] if _same(here, there) else [f"{name} is {shown(here)} here and {shown(there)} in {other}"]


def _same(here: Any, there: Any) -> bool:
    """Equal, or both not a number, which nothing is equal to."""
    if isinstance(here, Tensor) or isinstance(there, Tensor):
        return False
    both_nan = isinstance(here, float) and isinstance(there, float) and math.isnan(here) and math.isnan(there)
    return bool(here == there) or both_nan


def refuse_differences(what: str, here: dict[str, Any], there: dict[str, Any], way_out: str = "") -> None:
    """Raise a ValueError that says where what is here differs from `what` is to be taken up."""
    found = differences(here, there, other="it")
    if found:
        shown = "; ".join(found[:SHOWN_DIFFERENCES])
        more = f"; and {len(found) - SHOWN_DIFFERENCES} more" if len(found) > SHOWN_DIFFERENCES else ""
        raise ValueError(f"{what} does not fit: {shown}{more}{way_out}")
