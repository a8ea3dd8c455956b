"""What an optimizer holds: parameters, and a state of each."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from conformance.trace.state.torchs import KEPT_BY_TORCH
from conformance.trace.values import own_part


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside a framework's wrapper, which is an optimizer itself and keeps it under this name."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all of an optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def digest(optimizer: torch.optim.Optimizer) -> str:
    """Of what the optimizer keeps for each of its parameters and reads in a step."""
    is_torchs = type(optimizer).__module__.startswith("torch.optim.")
    kept = [
        [
            (name, _plain(value))
            for name, value in sorted((optimizer.state.get(parameter) or {}).items())
            if not is_torchs or name in KEPT_BY_TORCH
        ]
        for parameter in held_by(optimizer)
    ]
    return hashlib.blake2b(repr(kept).encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    return own_part(value).tolist() if isinstance(value, torch.Tensor) else value
