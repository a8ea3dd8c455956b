"""The settings of an optimizer's parameter groups, as plain JSON values."""

from __future__ import annotations

from typing import Any

import torch

from conformance.trace.state.parts import kind_of
from conformance.trace.state.watched import Watched
from conformance.trace.values import number

# Asked of each setting in each step, where a union would be made each time.
_NUMBERS = (int, float)


def algorithm(optimizer: torch.optim.Optimizer) -> str | None:
    """The torch optimizer that its class is, or is derived from; None if it is none of torch's."""
    for kind in kind_of(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer:
            return kind.__name__
    return None


def settings(optimizer: torch.optim.Optimizer, watched: Watched) -> list[dict[str, Any]]:
    """The settings of each group that holds watched parameters."""
    return [of_group(group) for group in optimizer.param_groups if watched.numbers(group["params"])]


def of_group(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of one group; those that are no numbers are left out."""
    values = {name: _plain(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in values.items() if value is not None}


def without_rates(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` but for the learning rate, which schedules change."""
    return {name: value for name, value in settings.items() if name not in ("lr", "initial_lr")}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _NUMBERS):
        return number(float(value))
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return number(float(value))
    if isinstance(value, tuple | list):
        parts = [_plain(one) for one in value]
        return None if None in parts else parts
    return None
