"""The states of every global random generator, as data."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator_states() -> dict[str, Any]:
    """Of torch on the CPU and on every GPU, of numpy and of Python; plain containers and tensors."""
    numpy = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": {**numpy, "state": {"key": numpy["state"]["key"].tolist(), "pos": numpy["state"]["pos"]}},
        "random": list(random.getstate()),
    }


def set_generator_states(states: dict[str, Any]) -> None:
    """The inverse. States of GPUs that are not here are left out."""
    torch.set_rng_state(states["torch"].cpu())
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for device, state in enumerate(states["cuda"][:count]):
        torch.cuda.set_rng_state(state.cpu(), device)
    numpy = states["numpy"]
    key = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy, "state": {"key": key, "pos": numpy["state"]["pos"]}})
    version, internal, gauss = states["random"]
    random.setstate((version, tuple(internal), gauss))
