"""The trained model as a linear function of its parameters: their names and shapes, and what multiplies each of them.

The elements of all parameters are numbered in one order, that of ``model.parameters()`` with each parameter flat.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from itertools import chain, product
from math import prod
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", float, Fraction)


@dataclass(frozen=True)
class Tensor:
    """A parameter. ``places``: how many of the model's modules have it."""

    name: str
    shape: tuple[int, ...]
    places: int = 1

    @property
    def size(self) -> int:
        return prod(self.shape)

    def group(self, groups: int) -> int:
        """The number of the parameter group that it is in where an optimizer has so many."""
        return group_of(len(self.shape), groups)

    @property
    def elements(self) -> tuple[str, ...]:
        """The name of each element; without a first index that is always zero, such as that of the only output."""
        shape = self.shape[1:] if self.shape[:1] == (1,) else self.shape
        indices = product(*map(range, shape))
        return tuple(self.name + ("[" + ", ".join(map(str, index)) + "]" if index else "") for index in indices)


@dataclass(frozen=True)
class Model(ABC):
    """A model whose prediction is a sum over the elements of its parameters, each times a function of the inputs.

    ``features``: how many inputs it has. ``blocks``: into how many kinds the inputs fall of which each uses elements
    that the others do not, such as a row of an embedding.
    """

    name: ClassVar[str]
    blocks: ClassVar[int] = 1

    features: int

    @cached_property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Its parameters."""

    @abstractmethod
    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        """What each element is multiplied with in the prediction for inputs ``x`` of shape (features,)."""

    @abstractmethod
    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        """Inputs of this block whose `row` is the given one, with zeros for elements of others, and ones for a bias."""

    @property
    def block_of(self) -> tuple[int | None, ...]:
        """For each element, the block that alone uses it; None if all do."""
        return (None,) * self.size

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


@dataclass(frozen=True)
class Linear(Model):
    """``torch.nn.Linear(features, 1, bias=bias)``."""

    name = "linear"

    bias: bool = False

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        weight, bias = Tensor("weight", (1, self.features)), Tensor("bias", (1,))
        return (weight, bias) if self.bias else (weight,)

    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        return tuple(chain(x, [one] if self.bias else []))

    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        return tuple(row[: self.features])


@dataclass(frozen=True)
class ManyTensors(Model):
    """Ten parameters of ranks 0 to 4, in the shapes that real models have, whose contributions add up.

    Each element is multiplied with an input of its own, in the order of the parameters, but: the bias with none; an
    element of the tied parameter with two, as it is used in two places; and of the embedding only one row is used,
    whose number comes first.
    """

    name = "many-tensors"
    blocks = 2

    features: int = 18

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        shapes: dict[str, tuple[int, ...]] = {
            "gain": (),
            "temperature": (),
            "scale": (2,),
            "cube": (2, 1, 1),
            "embedding.weight": (self.blocks, 2),
            "encoder.weight": (1, 2),  # The decoder's, too.
            "convolution.weight": (1, 2, 1, 1),
            "skip.weight": (1, 1),
            "linear.weight": (1, 2),
            "linear.bias": (1,),
        }
        return tuple(Tensor(name, shape, places=1 + (name == "encoder.weight")) for name, shape in shapes.items())

    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        table = [value if x[6] == block * one else one - one for block in range(self.blocks) for value in x[7:9]]
        tied = [encoded + decoded for encoded, decoded in zip(x[9:11], x[11:13], strict=True)]
        return tuple(chain(x[:6], table, tied, x[13:], [one]))

    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        first = 6 + 2 * block
        encoded, decoded = [value + value for value in row[10:12]], [-value for value in row[10:12]]
        return tuple(chain(row[:6], [block * row[-1]], row[first : first + 2], encoded, decoded, row[12:-1]))

    @property
    def block_of(self) -> tuple[int | None, ...]:
        return (*(None,) * 6, 0, 0, 1, 1, *(None,) * 8)


def group_of(dimensions: int, groups: int) -> int:
    """Of ``groups`` parameter groups, that of parameters of so many dimensions: matrices are in the first one, vectors
    in the second and scalars in the last."""
    return min(max(2 - dimensions, 0), groups - 1)


MODELS: dict[str, type[Model]] = {kind.name: kind for kind in (Linear, ManyTensors)}


def model_of(spec: Mapping[str, Any]) -> Model:
    """The model that the `model` of a case's spec describes."""
    kind = MODELS[spec["kind"]]
    return kind(**{field.name: spec[field.name] for field in fields(kind)})
