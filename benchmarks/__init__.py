"""Experiments with R-EWC: one run, sweeps of hundreds, selection on validation data, and reports.

It uses `avalanche_rewc` and is not part of the installed package: run it from a clone, as `python -m benchmarks.run`,
`benchmarks.sweep`, `benchmarks.report` and `benchmarks.compare`.
"""

import sys
import warnings
from types import TracebackType

# Avalanche's dependencies and its EWC warn about things that have no bearing on these experiments; in workers, and over
# a progress bar, they would bury what matters.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)
warnings.filterwarnings("ignore", "Using a non-tuple sequence for multidimensional indexing", UserWarning)


def _say_stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C before a command has begun, while torch and Avalanche are still being imported, is no accident either."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("\nstopped\n")
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _say_stopped
