"""Reads optimizers: settings, parameters, parts of masters in flat tensors, and states."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.trace.events import KEPT_BY_TORCH
from conformance.trace.tensor_values import number, own_part, placed, tensors_in


@dataclass(frozen=True)
class Part:
    """A rank's part of a parameter of `size` elements: its elements from `at` on are the `length` elements of `flat`
    from `start` on. `group`: the optimizer's group that steps it, None if frozen."""

    flat: torch.Tensor
    start: int
    length: int
    at: int
    size: int
    group: int | None

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The same elements of a tensor laid out like `flat`, such as its gradient."""
        return placed(own_part(flat).flatten()[self.start : self.start + self.length], self.at, self.size)


class Parted(torch.optim.Optimizer):
    """Presents an `inner` optimizer of flat tensors as an optimizer of their parts. It steps nothing itself.

    parts: the part of each parameter of the watched model, in order.
    """

    def __init__(self, inner: torch.optim.Optimizer, parts: Sequence[Part]) -> None:
        # Torch's constructor would reject the tensors of the inner groups, and count as a call of the trainer.
        self.inner, self._parts = inner, parts
        self.state, self.defaults = inner.state, inner.defaults
        self.tensors = tuple(part.of(part.flat) for part in parts)
        self.take()

    def take(self) -> None:
        """Read the inner optimizer's groups, and the current memory of the values."""
        self._groups = list(self.inner.param_groups)
        for part, tensor in zip(self._parts, self.tensors, strict=True):
            tensor.data, tensor.grad = part.of(part.flat), None
        self._settle()

    def take_gradients(self) -> None:
        """Read the current gradients of the flat tensors, if any, and the settings."""
        for part, tensor in zip(self._parts, self.tensors, strict=True):
            if part.group is not None and part.flat.grad is not None:
                tensor.grad = part.of(part.flat.grad)
        self._settle()

    def _settle(self) -> None:
        grouped = [(part.group, tensor) for part, tensor in zip(self._parts, self.tensors, strict=True)]
        # During a step, a wrapper may leave the inner optimizer only one of its groups.
        self.param_groups: list[dict[str, Any]] = [
            {**group, "params": [tensor for at, tensor in grouped if at == number]}
            for number, group in enumerate(self._groups)
        ]


def kind_of(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """The class that computes the optimizer's steps."""
    return type(optimizer.inner if isinstance(optimizer, Parted) else optimizer)


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer inside framework wrappers, which are optimizers with an attribute `optimizer`."""
    inner = getattr(optimizer, "optimizer", None)
    return unwrapped(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer


def held_by(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters of all of an optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def digest(optimizer: torch.optim.Optimizer) -> str:
    """A digest of the optimizer's state that its steps read."""
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


def dtypes_kept(optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> list[str]:
    """The dtypes of `parameters` and of the state that torch's step keeps for each of their elements."""
    kept = [
        tensor
        for parameter in parameters
        for tensor in (
            parameter,
            *(
                value
                for name, value in (optimizer.state.get(parameter) or {}).items()
                if name in KEPT_BY_TORCH and name != "step" and isinstance(value, torch.Tensor)
            ),
        )
    ]
    return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in kept if tensor.is_floating_point()})


def bytes_kept(optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """The bytes of state that this rank keeps for the optimizers' parameters, except step counts. State that a wrapper
    shares with its inner optimizer counts once."""
    kept = {
        id(tensor): tensor
        for optimizer in optimizers
        # A trainer's own class may have anything under this name.
        if isinstance(states := getattr(optimizer, "state", None), dict)
        for state in states.values()
        if isinstance(state, dict)
        for name, value in state.items()
        if name != "step"
        for tensor in tensors_in(value)
    }
    return sum(part.numel() * part.element_size() for part in map(own_part, kept.values()))


# A constant, because evaluating a union for each setting in each step takes time.
_NUMBERS = (int, float)


def algorithm(optimizer: torch.optim.Optimizer) -> str | None:
    """The torch optimizer that its class is or derives from; None for other optimizers."""
    for kind in kind_of(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer:
            return kind.__name__
    return None


def settings(
    optimizer: torch.optim.Optimizer, numbers: Callable[[Iterable[torch.Tensor]], Sequence[int]]
) -> list[dict[str, Any]]:
    """The settings of each group with parameters that have `numbers`."""
    return [of_group(group) for group in optimizer.param_groups if numbers(group["params"])]


def of_group(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of one group that are numbers, or lists of numbers."""
    values = {name: _setting(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in values.items() if value is not None}


def without_rates(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` without the learning rate, which schedules change."""
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
