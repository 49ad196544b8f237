"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence

from avalanche_rewc.core import Entry


def summary_table(entries: Sequence[Entry]) -> str:
    """One line per parameter: name, layer, shape, treatment and the reason where there is one."""
    if not entries:
        return "R-EWC has not learned an experience yet."
    rows = [("parameter", "layer", "shape", "protected by")]
    for entry in entries:
        how = {"rotated": "rotated diagonal Fisher", "diagonal": "diagonal Fisher", "frozen": "nothing: it is frozen"}
        note = f" ({entry.note})" if entry.note else ""
        shape = "×".join(map(str, entry.shape)) or "scalar"
        rows.append((entry.parameter, entry.layer, shape, how[entry.treatment] + note))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    )
