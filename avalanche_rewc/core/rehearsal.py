"""What an estimation would refuse after a week of training, refused before the first step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from avalanche_rewc.core.capture import evaluation_mode
from avalanche_rewc.core.gradients import by_autograd
from avalanche_rewc.core.plan import PROBE_SAMPLES, make_plan
from avalanche_rewc.core.selection import LayerChoice
from avalanche_rewc.core.wrappers import unwrapped


def rehearse(model: nn.Module, args: tuple[Any, ...], layers: LayerChoice) -> None:
    """Go through the motions of `consolidate` on three samples and keep nothing.

    Cost: a few forward and backward passes of those samples. The model and the global generators are left alone.

    Args:
        args: of the model's forward; tensors have the samples in their first dimension.
        layers: the choice to be made later.

    Raises:
        ValueError, RuntimeError: what `consolidate` would raise.
    """
    model = unwrapped(model)
    args = tuple(a[:PROBE_SAMPLES] if isinstance(a, Tensor) else a for a in args)
    with evaluation_mode(model), torch.random.fork_rng(devices=()):
        plan = make_plan(model, args, layers)
        if plan.general:
            logits = model(*args)
            for _ in by_autograd(model, plan.general, args, torch.ones_like(logits).unsqueeze(0)):
                pass
