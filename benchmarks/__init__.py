"""Experiments with R-EWC: one run, sweeps of hundreds, selection on validation data, and reports.

It uses `avalanche_rewc` and is not part of the installed package: run it from a clone, as `python -m benchmarks.run`,
`benchmarks.sweep`, `benchmarks.report` and `benchmarks.compare`.
"""

import os
import signal
import sys
import warnings

# Avalanche's dependencies and its EWC warn about things that have no bearing on these experiments; in workers, and over
# a progress bar, they would bury what matters.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)
warnings.filterwarnings("ignore", "Using a non-tuple sequence for multidimensional indexing", UserWarning)


def _stop_at_once(*_: object) -> None:
    """Ctrl-C before a command has begun, while torch and Avalanche are still being imported, is no accident either.

    No exception: some of what is imported swallows them, and the command would go on as if nothing had been said.
    """
    os.write(2, b"\nstopped\n")
    os._exit(130)


if sys.argv[0] == "-m" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # as Python says meanwhile
    signal.signal(signal.SIGINT, _stop_at_once)  # until `benchmarks.cli.call`
