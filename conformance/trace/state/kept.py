"""The memory that optimizers take for their state."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from conformance.trace.values import own_part, tensors_in


def bytes_kept(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """The bytes of all that this rank keeps for their parameters, but for counts of steps. A wrapper may show the state
    of the optimizer in it, which counts once."""
    kept = {
        id(tensor): tensor
        for optimizer in optimizers
        # A class of the trainer's own may have anything under this name.
        if isinstance(states := getattr(optimizer, "state", None), dict)
        for state in states.values()
        if isinstance(state, dict)
        for name, value in state.items()
        if name != "step"
        for tensor in tensors_in(value)
    }
    return sum(part.numel() * part.element_size() for part in map(own_part, kept.values()))
