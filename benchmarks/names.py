"""Wrong names get suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user can put right. Commands print its text, without a traceback."""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is not there: it shows the closest ones, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(known)}"
    return UserError(f"there is no {what} {name!r}; {hint}{more}")
