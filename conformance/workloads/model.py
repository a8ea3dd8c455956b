"""The trained model as a linear function of its parameters: their names and shapes, and what multiplies each of them.

The elements of all parameters are numbered in one order, that of ``model.parameters()`` with each parameter flat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Tensor:
    """A parameter. ``group``: the number of the parameter group that it is in where a workload has several."""

    name: str
    shape: tuple[int, ...]
    group: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def elements(self) -> tuple[str, ...]:
        """The name of each element; without a first index that is always zero, such as that of the only output."""
        shape = self.shape[1:] if self.shape[:1] == (1,) else self.shape
        indices = product(*map(range, shape))
        return tuple(self.name + ("[" + ", ".join(map(str, index)) + "]" if index else "") for index in indices)


@dataclass(frozen=True)
class Linear:
    """``torch.nn.Linear(features, 1, bias=bias)``."""

    features: int
    bias: bool = False

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        weight, bias = Tensor("weight", (1, self.features)), Tensor("bias", (1,), group=1)
        return (weight, bias) if self.bias else (weight,)

    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        """What each element is multiplied with in the prediction for inputs ``x`` of shape (features,)."""
        return (*x, one) if self.bias else tuple(x)

    @cached_property
    def size(self) -> int:
        """Elements of all parameters."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def elements(self) -> tuple[str, ...]:
        """The name of each element."""
        return tuple(name for tensor in self.tensors for name in tensor.elements)

    @cached_property
    def tensor_of(self) -> tuple[int, ...]:
        """For each element, the number of its parameter."""
        return tuple(number for number, tensor in enumerate(self.tensors) for _ in range(tensor.size))


def model_of(spec: Mapping[str, Any]) -> Linear:
    """The model that the `model` of a case's spec describes."""
    return Linear(spec["features"], spec["bias"])
