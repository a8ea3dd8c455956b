"""The trained model: the names and shapes of its parameters, and its forward and backward in any arithmetic.

All parameter elements are numbered in one order: that of ``model.parameters()``, each parameter flattened. A case
tracks only the used elements of a large parameter one by one. The others start equal and have zero gradients,
so they stay equal; the least and the largest represent them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property, reduce
from itertools import chain
from math import prod
from operator import add
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T", float, Fraction)


class Number(Protocol):
    """A number of any arithmetic: rationals, integers in some unit, arrays, numbers with an error."""

    def __add__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...


N = TypeVar("N", bound=Number)
#: The sums of a layer, each as pairs (element, index of the value below that it multiplies).
Layer = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class Tensor:
    """A parameter. ``places``: how many of the model's modules have it. ``used``: of a large one, the positions of the
    used elements, ascending. ``frozen``: it does not require gradients. ``block``: the kind of inputs that alone uses
    it; None if all do. ``sparse``: its gradient is a sparse tensor."""

    name: str
    shape: tuple[int, ...]
    places: int = 1
    used: tuple[int, ...] | None = None
    frozen: bool = False
    block: int | None = None
    sparse: bool = False

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        """How many elements are tracked."""
        return len(self.is_used)

    @property
    def is_used(self) -> tuple[bool, ...]:
        """Whether the model uses each of these elements. Two further ones represent all unused elements."""
        return (True,) * self.numel if self.used is None else (*(True,) * len(self.used), False, False)

    def group(self, groups: int) -> int:
        """The number of its parameter group in an optimizer with ``groups`` groups."""
        return group_of(len(self.shape), groups)

    def is_trained(self, window: int, unfreeze_at: int | None) -> bool:
        """Whether it is trained in a window; ``unfreeze_at``: the window that unfreezes frozen parameters, if any."""
        return not self.frozen or (unfreeze_at is not None and window >= unfreeze_at)

    @property
    def elements(self) -> tuple[str, ...]:
        """The name of each element; a first index that is always zero, such as that of the only output, is omitted."""
        if self.used is not None:
            return (*map(self._element, self.used), f"{self.name}[least other]", f"{self.name}[largest other]")
        return tuple(map(self._element, range(self.numel)))

    def _element(self, position: int) -> str:
        shape = self.shape[1:] if self.shape[:1] == (1,) else self.shape
        index = list[int]()
        for length in reversed(shape):
            position, place = divmod(position, length)
            index.insert(0, place)
        return self.name + (f"[{', '.join(map(str, index))}]" if index else "")


@dataclass(frozen=True)
class Model(ABC):
    """A model whose prediction is linear in each parameter: layers of sums of products, with nothing in between.

    ``features``: the number of inputs. ``blocks``: the number of kinds of inputs; each kind uses elements that the
    others do not, such as a row of an embedding.
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
        """The input of the first layer for inputs ``x`` of shape (features,)."""

    @abstractmethod
    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        """Inputs of this block with the given `row`, with zeros for elements of other blocks, and ones for a bias."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers from the inputs up. The last one has a single sum, the prediction. If it is the only one, each
        element multiplies the value with its number."""
        return ((tuple((number, number) for number in range(self.size)),),)

    def values(self, row: Sequence[N], weights: Sequence[N]) -> list[Sequence[N]]:
        """The forward: the inputs of each layer."""
        values = [row]
        for layer in self.layers[:-1]:
            values.append([reduce(add, [weights[element] * values[-1][at] for element, at in one]) for one in layer])
        return values

    def multiples(self, weights: Sequence[N]) -> list[Sequence[N]]:
        """The backward: the factor of each of `values` in the prediction."""
        [last] = self.layers[-1]
        multiples: list[Sequence[N]] = [[weights[element] for element, _ in last]]
        for layer in self.layers[-2::-1]:
            above = multiples[0]
            below = [reduce(add, [weights[element] * above[at] for element, at in one]) for one in transposed(layer)]
            multiples.insert(0, below)
        return multiples

    def folded(self, weights: Sequence[N]) -> Sequence[N]:
        """The factor of each entry of `row` in the prediction."""
        return weights if len(self.layers) == 1 else self.multiples(weights)[0]

    def slopes(self, row: Sequence[N], weights: Sequence[N], backward: Sequence[N] | None = None) -> Sequence[N]:
        """The derivative of the prediction by each element. ``backward``: the weights in the backward, if they differ
        from the forward's."""
        if len(self.layers) == 1:
            return row
        values, multiples = self.values(row, weights), self.multiples(backward or weights)
        [last] = self.layers[-1]
        slopes = {element: values[-1][at] for element, at in last}
        for layer, below, above in zip(self.layers[:-1], values[:-1], multiples[1:], strict=True):
            for one, multiple in zip(layer, above, strict=True):
                slopes |= {element: multiple * below[at] for element, at in one}
        return [slopes[element] for element in range(self.size)]

    @property
    def block_of(self) -> tuple[int | None, ...]:
        """For each element, the block that alone uses it; None if all do."""
        return (None,) * self.size

    def block(self, x: Sequence[T]) -> int:
        """The block of inputs ``x``."""
        return 0

    @cached_property
    def may_go_unused(self) -> bool:
        """Whether some inputs do not use some parameters."""
        return any(tensor.block is not None for tensor in self.tensors)

    @cached_property
    def has_sparse_gradients(self) -> bool:
        """Whether gradients of some parameters are sparse tensors."""
        return any(tensor.sparse for tensor in self.tensors)

    @cached_property
    def size(self) -> int:
        """The number of tracked elements in all parameters."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def numel(self) -> int:
        """The number of elements in all parameters."""
        return sum(tensor.numel for tensor in self.tensors)

    @cached_property
    def is_used(self) -> tuple[bool, ...]:
        """For each element, whether the model uses it."""
        return tuple(chain.from_iterable(tensor.is_used for tensor in self.tensors))

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
class Counting(Linear):
    """A Linear that counts its training samples and sums the squares of their inputs, times ``SCALE``, in buffers.

    The sum grows with each sample, so a loss of it shows.
    """

    name = "counting"
    #: Gives sums more digits than 16 bits can represent.
    SCALE = 1 + Fraction(1, 2**12)

    bias: bool = True


class WithDropout(Linear):
    """A Linear that draws random numbers in each training forward, for a dropout of zeros, which changes no number."""

    name = "with-dropout"


@dataclass(frozen=True)
class ManyTensors(Model):
    """Ten parameters of 0 to 4 dimensions, in the shapes of real models, whose contributions add up.

    Each element multiplies its own input, in the order of the parameters, with these exceptions: the bias multiplies
    none; an element of the tied parameter multiplies two, as it is used in two places; and only one row of the
    embedding is used, whose number comes first.

    ``scalars``: whether two have no dimension. FSDP2 rejects such parameters; without, they have one element.
    ``frozen``: three parameters do not require gradients. ``experts``: two parameters replace the embedding, and inputs
    use one of them, by the number that comes first. ``sparse``: the embedding's gradient is sparse.
    """

    name = "many-tensors"
    blocks = 2

    features: int = 18
    scalars: bool = True
    frozen: bool = False
    experts: bool = False
    sparse: bool = False

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        table = {"embedding.weight": (self.blocks, 2)}
        shapes: dict[str, tuple[int, ...]] = {
            "gain": () if self.scalars else (1,),
            "temperature": () if self.scalars else (1,),
            "scale": (2,),
            "cube": (2, 1, 1),
            **({f"experts.{block}.weight": (1, 2) for block in range(self.blocks)} if self.experts else table),
            "encoder.weight": (1, 2),  # Also the decoder's.
            "convolution.weight": (1, 2, 1, 1),
            "skip.weight": (1, 1),
            "linear.weight": (1, 2),
            "linear.bias": (1,),
        }
        frozen = ("temperature", "scale", "convolution.weight") if self.frozen else ()
        own = {f"experts.{block}.weight": block for block in range(self.blocks)}
        return tuple(
            Tensor(
                name,
                shape,
                places=1 + (name == "encoder.weight"),
                frozen=name in frozen,
                block=own.get(name),
                sparse=self.sparse and name in table,
            )
            for name, shape in shapes.items()
        )

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

    def block(self, x: Sequence[T]) -> int:
        return int(x[6])


@dataclass(frozen=True)
class LargeTensors(ManyTensors):
    """The same with three parameters so large that DistributedDataParallel divides the gradients into three buckets.
    The model uses few of their elements, always including the last one."""

    name = "large-tensors"

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        large: dict[str, dict[str, Any]] = {
            "scale": {"shape": (300_000,), "used": (0, 299_999)},
            # 26 MiB in fp32, so it has its own bucket.
            "cube": {"shape": (26, 512, 512), "used": (2_000_000, 26 * 512 * 512 - 1)},
            "embedding.weight": {"shape": (140_000, 2), "used": (100_000, 100_001, 279_998, 279_999)},
        }
        return tuple(replace(tensor, **large.get(tensor.name, {})) for tensor in super().tensors)

    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        used = iter(super().row(x, one))
        return tuple(next(used) if is_used else one - one for is_used in self.is_used)

    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        return super().inputs([value for value, is_used in zip(row, self.is_used, strict=True) if is_used], block)

    @property
    def block_of(self) -> tuple[int | None, ...]:
        used = iter(super().block_of)
        return tuple(next(used) if is_used else None for is_used in self.is_used)


def group_of(dimensions: int, groups: int) -> int:
    """The group of a parameter, of ``groups`` groups: matrices are in the first one, vectors in the second and scalars
    in the last."""
    return min(max(2 - dimensions, 0), groups - 1)


@dataclass(frozen=True)
class TwoLayers(Model):
    """A product of two matrices: the gradient of each depends on the other."""

    name = "two-layers"

    features: int = 3
    hidden: int = 2

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return Tensor("first.weight", (self.hidden, self.features)), Tensor("second.weight", (1, self.hidden))

    def row(self, x: Sequence[T], one: T) -> tuple[T, ...]:
        return tuple(x)

    def inputs(self, row: Sequence[T], block: int) -> tuple[T, ...]:
        return tuple(row)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        features, hidden = range(self.features), range(self.hidden)
        first = tuple(tuple((one * self.features + at, at) for at in features) for one in hidden)
        return first, (tuple((self.hidden * self.features + at, at) for at in hidden),)


def transposed(layer: Layer) -> Layer:
    """For each value below, the elements that multiply it, each with the index of its sum."""
    of: dict[int, list[tuple[int, int]]] = {}
    for number, one in enumerate(layer):
        for element, at in one:
            of.setdefault(at, []).append((element, number))
    return tuple(tuple(of[at]) for at in sorted(of))


MODELS: dict[str, type[Model]] = {
    kind.name: kind for kind in (Linear, Counting, WithDropout, ManyTensors, LargeTensors, TwoLayers)
}


def model_of(spec: Mapping[str, Any]) -> Model:
    """The model that the `model` of a case's spec describes."""
    kind = MODELS[spec["kind"]]
    return kind(**{field.name: spec[field.name] for field in fields(kind) if field.name in spec})
