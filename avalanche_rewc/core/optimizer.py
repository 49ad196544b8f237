"""An optimizer's memory of a parameter, when that parameter changes its coordinates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

LINEAR_STATE = {"momentum_buffer"}
"""State that is a sum of gradients, so that it rotates as they do."""


def change_coordinates(optimizer: Optimizer, parameter: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    """Carry the optimizer's state of `parameter` into new coordinates, or reset it where that has no meaning.

    Momentum is a sum of gradients and is changed as they are. Second moments (Adam, RMSprop, Adagrad) are squares of
    old coordinates; with them goes everything they are used with, step counts too, as if the parameter were new.
    """
    state = optimizer.state.get(parameter)
    if not state:
        return
    tensors = {key for key, value in state.items() if isinstance(value, Tensor) and key != "step"}
    if tensors <= LINEAR_STATE:
        for key in tensors:
            state[key] = change(state[key])
    elif isinstance(optimizer, torch.optim.Adagrad):  # the one optimizer of torch that makes its state beforehand
        state["step"].zero_()
        state["sum"].fill_(optimizer.defaults["initial_accumulator_value"])
    else:
        del optimizer.state[parameter]
