"""Experiments with R-EWC: one run, sweeps of hundreds, selection on validation data, and reports.

It uses `avalanche_rewc` and is not part of the installed package: run it from a clone, as `python -m benchmarks.run`,
`benchmarks.sweep`, `benchmarks.report` and `benchmarks.compare`.
"""

import warnings

# Avalanche's dependencies and its EWC warn about things that have no bearing on these experiments; in workers, and over
# a progress bar, they would bury what matters.
warnings.filterwarnings("ignore", "no QP solver found", UserWarning)
warnings.filterwarnings("ignore", "Using a non-tuple sequence for multidimensional indexing", UserWarning)
