"""Rotated Elastic Weight Consolidation (R-EWC) for Avalanche.

`avalanche_rewc.core` needs torch and SciPy only; Avalanche is imported with the first use of `REWC` or `REWCPlugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avalanche_rewc.plugin import REWCPlugin
    from avalanche_rewc.strategy import REWC

__version__ = "0.1.0"
__all__ = ["REWC", "REWCPlugin", "__version__"]

_HOMES = {"REWC": "avalanche_rewc.strategy", "REWCPlugin": "avalanche_rewc.plugin"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
