"""R-EWC without Avalanche, for any torch model and training loop.

After a task: `memory = consolidate(model, batches)`. For the next one: `training = ProtectedTraining(model, [memory],
ewc_lambda, optimizer=optimizer)`, add `training.penalty()` to every loss, and `training.end()` when it is learned.
"""

from avalanche_rewc.core.bases import BASES, BasisFunction, RandomBasis
from avalanche_rewc.core.consolidate import Batch, ConvBasis, consolidate
from avalanche_rewc.core.memory import Memory
from avalanche_rewc.core.penalty import QuadraticPenalty
from avalanche_rewc.core.plan import Entry
from avalanche_rewc.core.pulls import Term
from avalanche_rewc.core.rehearsal import rehearse
from avalanche_rewc.core.reparametrize import is_rotated, merge_layer, rotate_layer
from avalanche_rewc.core.rotation import Rotation
from avalanche_rewc.core.selection import LayerChoice
from avalanche_rewc.core.signals import FisherKind
from avalanche_rewc.core.training import ProtectedTraining, Space

__all__ = [
    "BASES",
    "BasisFunction",
    "Batch",
    "ConvBasis",
    "Entry",
    "FisherKind",
    "LayerChoice",
    "Memory",
    "ProtectedTraining",
    "QuadraticPenalty",
    "RandomBasis",
    "Rotation",
    "Space",
    "Term",
    "consolidate",
    "is_rotated",
    "merge_layer",
    "rehearse",
    "rotate_layer",
]
