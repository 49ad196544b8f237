"""Experiments that can be killed at any moment and started again: see `Resumable`."""

from avalanche_rewc.resume.resumable import Resumable

__all__ = ["Resumable"]
