"""The paper's numbers (Liu et al., "Rotate your Networks", ICPR 2018), in per cent, to stand beside ours."""

from __future__ import annotations

TABLE_1_STRENGTHS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
_FT = (6.1, 97.6)
_ROWS: dict[str, tuple[tuple[float, float], ...]] = {
    "naive": (_FT, _FT, _FT, _FT, _FT),
    "rewc-none": ((66.8, 90.9), (75.3, 95.6), (85.8, 92.8), (78.4, 93.7), (81.0, 88.8)),
    "rewc-conv": ((62.7, 89.2), (67.5, 96.1), (80.4, 91.4), (84.7, 93.1), (75.5, 93.7)),
    "rewc-fc": ((78.9, 95.3), (79.0, 95.8), (87.4, 93.5), (93.0, 82.3), (94.3, 88.0)),
    "rewc-all": ((77.2, 96.7), (91.7, 91.2), (86.9, 95.9), (96.3, 81.1), (92.1, 86.0)),
    "rewc": ((71.5, 91.8), (84.9, 97.0), (91.6, 94.5), (94.6, 88.4), (97.9, 79.4)),
}
TABLE_1: dict[str, dict[float, tuple[float, float]]] = {
    method: dict(zip(TABLE_1_STRENGTHS, row, strict=True)) for method, row in _ROWS.items()
}
"""Table I, disjoint MNIST: (task 1, task 2) by method and λ. FT does not depend on λ."""

TABLE_2: dict[str, dict[str, tuple[float, float, float]]] = {
    "mnist": {"rewc-none": (89.3, 85.8, 92.8), "rewc": (93.1, 91.6, 94.5)},
    "cifar100-features": {"rewc-none": (37.5, 23.5, 51.5), "rewc": (42.5, 30.2, 54.7)},
    "cub200-features": {"rewc-none": (45.3, 42.3, 48.6), "rewc": (48.4, 53.3, 45.2)},
    "stanford40-features": {"rewc-none": (50.4, 44.3, 58.4), "rewc": (52.5, 52.3, 52.6)},
}
"""Table II, two tasks: (average, task 1, task 2). The paper fine-tunes the convolutions for the last two."""

TABLE_3: dict[str, dict[str, tuple[tuple[float, ...], ...]]] = {
    "stanford40-features": {
        "rewc-none": ((81.5,), (49.5, 75.8), (6.1, 45.1, 69.9), (0.0, 7.0, 44.5, 46.8)),
        "rewc": ((81.5,), (55.4, 81.5), (18.8, 48.7, 72.1), (12.0, 31.3, 56.9, 50.9)),
    }
}
"""Table III, four tasks of Stanford-40: row k has the tasks' accuracies after task k + 1."""

TABLE_3_AVERAGES: dict[str, dict[str, tuple[float, ...]]] = {
    "stanford40-features": {"rewc-none": (81.5, 62.0, 40.3, 23.0), "rewc": (81.5, 69.0, 47.2, 37.2)}
}
"""Its last column as printed; the third EWC value (40.3) is rounded down from 40.37."""

FISHER_ENERGY = (40.8, 74.4)
"""Fig. FIM: energy on the diagonal before and after rotation."""

SAME_DATA = {
    "cub200": "cub200-features",
    "stanford40": "stanford40-features",
}
"""Streams whose paper numbers are filed under another name."""


def name_of(method: str) -> str:
    """Our name of a method under which the paper's numbers are filed: the scale of λ does not make another one."""
    return method.removesuffix("-raw")


def final_average(stream: str, tasks: int, method: str) -> float | None:
    """The paper's average accuracy after the last task, where it prints one."""
    stream, method = SAME_DATA.get(stream, stream), name_of(method)
    if tasks == 2 and method in TABLE_2.get(stream, {}):
        return TABLE_2[stream][method][0]
    if stream == "mnist" and tasks == 2 and method in TABLE_1:
        return max(sum(pair) / 2 for pair in TABLE_1[method].values())
    if tasks == 4 and method in TABLE_3_AVERAGES.get(stream, {}):
        return TABLE_3_AVERAGES[stream][method][-1]
    return None
