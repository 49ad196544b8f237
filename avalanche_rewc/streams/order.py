"""Which classes come when, and which samples are held out, without touching a global generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def order_classes(classes: Sequence[int], seed: int | None, class_order: Sequence[int] | None) -> list[int]:
    """The classes in the order in which a stream brings them.

    Args:
        classes: all classes there are.
        seed: shuffles them (the order Avalanche's `nc_benchmark` draws from the same seed); None: in natural order.
        class_order: the order itself. It may leave classes out, which then are not part of the stream.
    """
    known = sorted(set(classes))
    if class_order is not None:
        if seed is not None:
            raise ValueError("give either seed or class_order, not both")
        order = [int(c) for c in class_order]
        if unknown := sorted(set(order) - set(known)):
            raise ValueError(f"class_order: no class {unknown[0]}; classes are {known[0]} to {known[-1]}")
        if len(set(order)) != len(order):
            raise ValueError(f"class_order: class {max(order, key=order.count)} comes twice")
        if not order:
            raise ValueError("class_order is empty")
        return order
    if seed is None:
        return known
    shuffled = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    return [known[i] for i in shuffled.tolist()]


def equal_groups(order: Sequence[int], n_experiences: int, name: str) -> list[list[int]]:
    """Cut the ordered classes into equal groups; refuse a number that does not divide."""
    if n_experiences < 1:
        raise ValueError(f"n_experiences={n_experiences}: a stream has at least one experience")
    size, rest = divmod(len(order), n_experiences)
    if rest or not size:
        divisors = [n for n in range(1, len(order) + 1) if len(order) % n == 0]
        raise ValueError(
            f"{name}: {len(order)} classes cannot be divided into {n_experiences} equal experiences; "
            f"possible numbers are {', '.join(map(str, divisors))} (or leave classes out with class_order)"
        )
    return [list(order[k * size : (k + 1) * size]) for k in range(n_experiences)]


def hold_out(targets: Tensor, validation: float, seed: int, name: str) -> Tensor:
    """Which samples go to the validation stream: the same share of every class.

    Args:
        targets: labels (N,).
        validation: below 1 a share of every class, rounded, at least one sample; from 1 on a number per class.
        seed: of the draw. The same seed holds out the same samples whatever the order of classes.
        name: of the data set, for errors.

    Returns:
        A mask (N,), true for samples held out.
    """
    mask = torch.zeros(len(targets), dtype=torch.bool)
    if validation == 0:
        return mask
    if validation < 0 or (validation > 1 and validation != int(validation)):
        raise ValueError(f"validation={validation}: give a share below 1, or a whole number of samples per class")
    generator = torch.Generator().manual_seed(seed)
    for label in torch.unique(targets).tolist():
        indices = torch.nonzero(targets == label).flatten()
        count = int(validation) if validation >= 1 else max(1, round(validation * len(indices)))
        if count >= len(indices):
            raise ValueError(
                f"{name}: validation={validation} takes {count} of the {len(indices)} training samples of class "
                f"{label}: none is left to train on"
            )
        mask[indices[torch.randperm(len(indices), generator=generator)[:count]]] = True
    return mask
