"""Optimizers that step parts of the parameters' masters in flat tensors of a wrapper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from conformance.trace.shards import placed
from conformance.trace.values import own_part


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
