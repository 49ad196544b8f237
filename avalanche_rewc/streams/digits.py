"""scikit-learn's digits: small, real, and always there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits

from avalanche_rewc.streams.dataset import TensorClassificationDataset
from avalanche_rewc.streams.order import hold_out
from avalanche_rewc.streams.split import Source, SplitBenchmark, split

TEST_SHARE = 0.25
"""The set has no split of its own; a quarter of every class is the test data, always the same quarter."""


def SplitDigits(
    n_experiences: int = 2,
    *,
    seed: int | None = None,
    class_order: Sequence[int] | None = None,
    validation: float = 0.0,
    validation_seed: int = 0,
    task_labels: bool = False,
) -> SplitBenchmark:
    """scikit-learn's 1,797 handwritten digits as a stream of classes; nothing is downloaded.

    Samples are (1, 8, 8) float32 in [0, 1]; 1,347 to train, 450 to test. Options as of `split`.
    """
    digits = load_digits()
    inputs = torch.from_numpy(digits.images).to(torch.float32).div_(16).unsqueeze(1)
    targets = torch.from_numpy(digits.target).to(torch.int64)
    test = hold_out(targets, TEST_SHARE, 0, "digits")
    return split(
        Source(
            "digits",
            TensorClassificationDataset(inputs[~test], targets[~test]),
            TensorClassificationDataset(inputs[test], targets[test]),
            [str(digit) for digit in range(10)],
        ),
        n_experiences=n_experiences,
        seed=seed,
        class_order=class_order,
        validation=validation,
        validation_seed=validation_seed,
        task_labels=task_labels,
    )
