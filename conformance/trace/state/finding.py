"""Finds parameters in a module, the elements of them that are read, copies of them, and samples in inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from conformance.trace.values import Number, elements, own_part, picked, places, values


def master_of(used: torch.Tensor | None, *candidates: torch.Tensor | None) -> torch.Tensor | None:
    """The candidate of which `used` is a copy in another format; else `used`."""
    others = (one for one in candidates if one is not None and used is not None and one.dtype != used.dtype)
    return next((one for one in others if are_equal(used, one) or _is_shard(one, used)), used)


def or_stepped(used: torch.Tensor | None, stepped: torch.Tensor | None) -> torch.Tensor | None:
    """`used`, or what is stepped of it while it has no values."""
    return used if used is None or own_part(used).numel() else stepped


def cast_from(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The leaf that a tensor of a graph was cast from, with no other operation in between."""
    cast = None if tensor is None else tensor.grad_fn
    if cast is None or cast.name() != "ToCopyBackward0":
        return None
    return getattr(cast.next_functions[0][0], "variable", None)


def parameters_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a module and those within it have as parameters, by name, but not what parametrizations compute others from.
    In a functional call these are tensors."""
    if not module._modules:
        return {name: one for name, one in module._parameters.items() if one is not None}
    return {name: one for name, one in module.named_parameters() if "parametrizations" not in name.split(".")}


def parametrized(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """The tensor that a parametrization computes the one of this name from, if it does so from one."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        found = home.get_submodule(f"parametrizations.{leaf}")._parameters
    except AttributeError:
        return None
    return found.get("original")


def tensor_at(module: torch.nn.Module, name: str, otherwise: torch.Tensor | None = None) -> torch.Tensor | None:
    """What is called so in a module, or in one within it."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        # DeepSpeed gathers a parameter that is looked up like an attribute, which would be a collective of ours.
        known: Any = home._parameters  # Of a scripted module, no dict.
        own = dict.get(known, leaf) if isinstance(known, dict) else None
        value = getattr(home, leaf, otherwise) if own is None else own
    except AttributeError:
        return otherwise
    return value if isinstance(value, torch.Tensor) else None


def are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    one, other = own_part(one), own_part(other)
    # What has no values is equal to nothing.
    return one.numel() > 0 and one.shape == other.shape and torch.equal(one, other.to(one))


def _is_shard(one: torch.Tensor, used: torch.Tensor | None) -> bool:
    """Whether `one` is what this rank holds of a tensor that was gathered into `used`, in another format."""
    at = None if used is None else places(one)
    if used is None or at is None:
        return False
    part, whole = own_part(one).to(used.dtype).flatten(), own_part(used).flatten()
    return len(at) == len(part) and max(at, default=-1) < len(whole) and torch.equal(part, whole[list(at)])


def is_part(one: torch.Tensor, whole: torch.Tensor | None) -> bool:
    """Whether `one` is what this rank holds of a copy of `whole`, which may be nothing."""
    at = None if whole is None or one.shape != whole.shape else places(one)
    if whole is None or at is None:
        return False
    part, values = own_part(one).flatten(), own_part(whole).flatten()
    return len(values) == whole.numel() and torch.equal(part, values[list(at)].to(part))


MOST_ELEMENTS = 4096
"""Values are read of models up to this size."""


class Elements:
    """Of parameters that have these `shapes`, of which a model uses the elements `used`, or all where it is None.

    is_readable: whether they are so few that values are read.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], used: Sequence[tuple[int, ...] | None]) -> None:
        self.shapes = list(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._used = list(used)
        read = (size if at is None else len(at) for size, at in zip(self.sizes, self._used, strict=True))
        self.is_readable = sum(read) <= MOST_ELEMENTS

    def values(self, tensors: Sequence[torch.Tensor | None]) -> list[Number]:
        """Those of all parameters, or of their gradients: `tensors` are either."""
        if not any(self._used):
            return values(tensors, self.sizes)
        flat: list[Number] = []
        for tensor, size, used in zip(tensors, self.sizes, self._used, strict=True):
            flat += values([tensor], [size]) if used is None else picked(tensor, used, size)
        return flat

    def sight(self, number: int, tensor: torch.Tensor) -> list[Number]:
        """The elements of the parameter `number` that the model uses, or of its gradient: `tensor` is either."""
        used = self._used[number]
        return elements(tensor if used is None else own_part(tensor).flatten()[list(used)])

    def held(self, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
        """The positions of the elements that this rank holds of `tensors`; None if none is split over the ranks."""
        split = [None if one is None else places(one) for one in tensors]
        # Of a large parameter, which elements are where is not followed.
        is_followed = all(at is None or used is None for at, used in zip(split, self._used, strict=False))
        if all(at is None for at in split) or not is_followed:
            return None
        starts = accumulate(self.sizes, initial=0)
        return [
            start + place
            for start, at, size in zip(starts, split, self.sizes, strict=False)
            for place in (range(size) if at is None else at)
        ]


class Rows:
    """Finds input rows among the samples. Compares them in the dtype of the inputs, which a trainer may cast.

    Samples that are equal in that dtype cannot be told apart: none of them is found.
    """

    def __init__(self, x: list[list[float]]) -> None:
        self._distinct = torch.tensor(list(dict.fromkeys(map(tuple, x))), dtype=torch.float64)
        self._features = self._distinct.shape[-1]
        self._index: dict[torch.dtype, dict[tuple[float, ...], int]] = {}

    def of(self, inputs: torch.Tensor) -> list[int | None]:
        """The index of each row of `inputs` (..., features) among the distinct rows; [] for another shape, and for
        inputs without values."""
        inputs = own_part(inputs)
        features = self._features
        shape = inputs.shape
        if not shape or shape[-1] != features:
            return []
        if inputs.dtype not in self._index:
            known = [tuple(row) for row in self._distinct.to(inputs.dtype).double().tolist()]
            times = Counter(known)
            self._index[inputs.dtype] = {row: index for index, row in enumerate(known) if times[row] == 1}
        index = self._index[inputs.dtype]
        rows = (inputs if len(shape) == 2 else inputs.reshape(-1, features)).tolist()
        return list(map(index.get, map(tuple, rows)))
