"""What an optimizer holds: settings, parameters, parts of masters in flat tensors, and a state of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.trace.events import KEPT_BY_TORCH
from conformance.trace.values import number, own_part, placed, tensors_in


@dataclass(frozen=True)
class Part:
    """What a rank has of a parameter of `size` elements: those from `at` on are the `length` elements of `flat` from
    `start` on. `group`: that of the optimizer which steps it, None if none does."""

    flat: torch.Tensor
    start: int
    length: int
    at: int
    size: int
    group: int | None

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The same elements of a tensor that has the places of `flat`, such as its gradient."""
        return placed(own_part(flat).flatten()[self.start : self.start + self.length], self.at, self.size)


class Parted(torch.optim.Optimizer):
    """Shows an `inner` optimizer of flat tensors as one of their parts. It steps nothing.

    parts: of each parameter of the watched model in order.
    """

    def __init__(self, inner: torch.optim.Optimizer, parts: Sequence[Part]) -> None:
        # Torch's own constructor takes no parameters of others' groups, and counts as a call of the trainer's.
        self.inner, self._parts = inner, parts
        self.state, self.defaults = inner.state, inner.defaults
        self.tensors = tuple(part.of(part.flat) for part in parts)
        self.take()

    def take(self) -> None:
        """Take over the groups, and where the values are now."""
        self._groups = list(self.inner.param_groups)
        for part, tensor in zip(self._parts, self.tensors, strict=True):
            tensor.data, tensor.grad = part.of(part.flat), None
        self._settle()

    def take_gradients(self) -> None:
        """Take those that the flat tensors have now, where one has any, and the settings."""
        for part, tensor in zip(self._parts, self.tensors, strict=True):
            if part.group is not None and part.flat.grad is not None:
                tensor.grad = part.of(part.flat.grad)
        self._settle()

    def _settle(self) -> None:
        grouped = [(part.group, tensor) for part, tensor in zip(self._parts, self.tensors, strict=True)]
        # A wrapper may leave the inner optimizer but one of its groups in a step.
        self.param_groups: list[dict[str, Any]] = [
            {**group, "params": [tensor for at, tensor in grouped if at == number]}
            for number, group in enumerate(self._groups)
        ]


def kind_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The class that computes its steps."""
    return type(optimizer.inner if isinstance(optimizer, Parted) else optimizer)


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


# Asked of each setting in each step, where a union would be made each time.
_NUMBERS = (int, float)


def algorithm(optimizer: torch.optim.Optimizer) -> str | None:
    """The torch optimizer that its class is, or is derived from; None if it is none of torch's."""
    for kind in kind_of(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer:
            return kind.__name__
    return None


def settings(
    optimizer: torch.optim.Optimizer, numbers: Callable[[Iterable[torch.Tensor]], Sequence[int]]
) -> list[dict[str, Any]]:
    """The settings of each group that holds parameters which have `numbers`."""
    return [of_group(group) for group in optimizer.param_groups if numbers(group["params"])]


def of_group(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of one group; those that are no numbers are left out."""
    values = {name: _setting(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in values.items() if value is not None}


def without_rates(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` but for the learning rate, which schedules change."""
    return {name: value for name, value in settings.items() if name not in ("lr", "initial_lr")}


def _setting(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _NUMBERS):
        return number(float(value))
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return number(float(value))
    if isinstance(value, tuple | list):
        parts = [_setting(one) for one in value]
        return None if None in parts else parts
    return None
