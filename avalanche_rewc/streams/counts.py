"""Is a data set as large as its authors published it?"""

from __future__ import annotations

import warnings


class NonCanonicalCounts(UserWarning):
    """A data set does not have the published numbers of samples or classes."""


def check_counts(
    what: str, found: dict[str, int], canonical: dict[str, int], *, warn: bool, stacklevel: int = 3
) -> None:
    """Warn, naming both numbers, where counts are not the published ones.

    Args:
        what: the set and where it was read from.
        found: counts by name, such as {"training pictures": 96}.
        canonical: the published ones, under the same names.
        warn: False where the user said that the set is another one.
        stacklevel: of the warning.
    """
    wrong = [
        f"{found[name]:,} {name} (published: {canonical[name]:,})"
        for name in canonical
        if found[name] != canonical[name]
    ]
    if wrong and warn:
        warnings.warn(
            f"{what} has {', '.join(wrong)}. Results do not compare with published ones; if this is meant, pass "
            "canonical=False",
            NonCanonicalCounts,
            stacklevel=stacklevel,
        )


def require_counts(what: str, found: dict[str, int], canonical: dict[str, int]) -> None:
    """Refuse counts that are not the published ones: for sets that were just downloaded."""
    if found != canonical:
        raise ValueError(f"{what} has {found}, published are {canonical}: fetch it again")
