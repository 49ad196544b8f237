"""Models inside `torch.compile` or `DataParallel`: the same parameters under longer names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that the user wrote, whatever it is wrapped in.

    A wrapper prefixes every parameter's name. What is remembered must not depend on it: a model may be compiled or
    wrapped after its first experience, and would find nothing of its own in a memory with other names.
    """
    while True:
        if isinstance(model, nn.DataParallel):
            model = model.module
        elif isinstance(inner := model._modules.get("_orig_mod"), nn.Module):  # torch.compile's OptimizedModule
            model = inner
        else:
            return model


def refuse_replicas(model: nn.Module) -> None:
    """Replicas hold copies of parameters in a layer's place; a rotated layer would not find its own there.

    Raises:
        ValueError: DataParallel over more than one device.
    """
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise ValueError(
            f'DataParallel over {len(model.device_ids)} devices copies layers in every step, which space="rotated" '
            'does not allow: use space="original", or one device'
        )


@contextmanager
def without_compilation() -> Iterator[None]:
    """Run compiled models, and compiled parts of models, as they were written.

    An estimation looks inside a forward pass with hooks and transforms, which compiled code has no place for; and each
    would cost a compilation. Nothing to do (and nothing imported) unless something has been compiled.
    """
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield
