"""Finds a module's parameters, their readable elements and copies, and samples in inputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from conformance.trace.tensor_values import Number, elements, own_part, picked, places, values


def master_of(used: torch.Tensor | None, *candidates: torch.Tensor | None) -> torch.Tensor | None:
    """The candidate that `used` copies in another format; else `used`."""
    others = (one for one in candidates if one is not None and used is not None and one.dtype != used.dtype)
    return next((one for one in others if are_equal(used, one) or _is_shard(one, used)), used)


def or_stepped(used: torch.Tensor | None, stepped: torch.Tensor | None) -> torch.Tensor | None:
    """`used`, or the `stepped` part while `used` has no values."""
    return used if used is None or own_part(used).numel() else stepped


def parts_of(
    flat: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None] | None:
    """The part of each trainable parameter in tensors that hold their elements in order; None if the sizes differ."""
    own = [None if one is None or not one.requires_grad else one for one in parameters]
    sizes = [one.numel() for one in own if one is not None]
    if not flat or sum(sizes) != sum(one.numel() for one in flat):
        return None
    parts = iter(torch.cat([one.flatten() for one in flat]).split(sizes))
    return [None if one is None else next(parts).view(one.shape) for one in own]


def cast_from(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The leaf from which a tensor of a graph was cast, without other operations; else None."""
    cast = None if tensor is None else tensor.grad_fn
    if cast is None or cast.name() != "ToCopyBackward0":
        return None
    return getattr(cast.next_functions[0][0], "variable", None)


def parameters_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters of a module and its submodules by name, without the originals of parametrizations. In a functional
    call they are tensors."""
    if not module._modules:
        return {name: one for name, one in module._parameters.items() if one is not None}
    return {name: one for name, one in module.named_parameters() if "parametrizations" not in name.split(".")}


def parametrized(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    """The original from which a parametrization computes the tensor of this name; None unless there is exactly one."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        found = home.get_submodule(f"parametrizations.{leaf}")._parameters
    except AttributeError:
        return None
    return found.get("original")


def tensor_at(module: torch.nn.Module, name: str, otherwise: torch.Tensor | None = None) -> torch.Tensor | None:
    """The tensor of this dotted name in a module."""
    owner, _, leaf = name.rpartition(".")
    try:
        home = module.get_submodule(owner)
        # Attribute lookup would make DeepSpeed gather the parameter, with a collective of the recorder's.
        known: Any = home._parameters  # A scripted module has no dict here.
        own = dict.get(known, leaf) if isinstance(known, dict) else None
        value = getattr(home, leaf, otherwise) if own is None else own
    except AttributeError:
        return otherwise
    return value if isinstance(value, torch.Tensor) else None


def are_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return False
    one, other = own_part(one), own_part(other)
    # Tensors without values equal nothing.
    return one.numel() > 0 and one.shape == other.shape and torch.equal(one, other.to(one))


def _is_shard(one: torch.Tensor, used: torch.Tensor | None) -> bool:
    """Whether `one` is this rank's shard of a tensor that was gathered into `used`, in another format."""
    at = None if used is None else places(one)
    if used is None or at is None:
        return False
    part, whole = own_part(one).to(used.dtype).flatten(), own_part(used).flatten()
    return len(at) == len(part) and max(at, default=-1) < len(whole) and torch.equal(part, whole[list(at)])


def is_part(one: torch.Tensor, whole: torch.Tensor | None) -> bool:
    """Whether `one` is this rank's shard, perhaps empty, of a copy of `whole`."""
    at = None if whole is None or one.shape != whole.shape else places(one)
    if whole is None or at is None:
        return False
    part, values = own_part(one).flatten(), own_part(whole).flatten()
    return len(values) == whole.numel() and torch.equal(part, values[list(at)].to(part))


MOST_ELEMENTS = 4096
"""The size of the largest models whose values are read."""


class Elements:
    """The elements of parameters with these `shapes`. A model uses only the elements `used`, or all if that is None.

    is_readable: whether the used elements are few enough to read their values.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], used: Sequence[tuple[int, ...] | None]) -> None:
        self.shapes = list(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._used = list(used)
        read = (size if at is None else len(at) for size, at in zip(self.sizes, self._used, strict=True))
        self.is_readable = sum(read) <= MOST_ELEMENTS

    def values(self, tensors: Sequence[torch.Tensor | None]) -> list[Number]:
        """The values of `tensors`: all parameters, or all their gradients."""
        if not any(self._used):
            return values(tensors, self.sizes)
        flat: list[Number] = []
        for tensor, size, used in zip(tensors, self.sizes, self._used, strict=True):
            flat += values([tensor], [size]) if used is None else picked(tensor, used, size)
        return flat

    def sight(self, number: int, tensor: torch.Tensor) -> list[Number]:
        """The used elements of `tensor`: the parameter `number` or its gradient."""
        used = self._used[number]
        return elements(tensor if used is None else own_part(tensor).flatten()[list(used)])

    def laid_out(self, seen: Mapping[int, list[Number] | None]) -> list[Number]:
        """What `sight` saw by number, as `values` lists it; None for parts and for elements that it did not see."""
        flat: list[Number] = []
        for number, (size, used) in enumerate(zip(self.sizes, self._used, strict=True)):
            sight, size = seen.get(number), size if used is None else len(used) + 2
            flat += [None] * size if sight is None or len(sight) != size else sight
        return flat

    def held(self, tensors: Sequence[torch.Tensor | None]) -> list[int] | None:
        """The positions of the elements that this rank holds of `tensors`; None if they are not split over ranks."""
        split = [None if one is None else places(one) for one in tensors]
        # The positions of a large parameter's elements are not tracked.
        is_followed = all(at is None or used is None for at, used in zip(split, self._used, strict=False))
        if all(at is None for at in split) or not is_followed:
            return None
        starts = accumulate(self.sizes, initial=0)
        return [
            start + place
            for start, at, size in zip(starts, split, self.sizes, strict=False)
            for place in (range(size) if at is None else at)
        ]


_COARSEST = 2.0**-7
"""Relative rounding of bfloat16, twice."""
#: Rows that are compared with all samples.
_FIRST = 8


class Rows:
    """Finds input rows among the samples. Compares them in the dtype of the inputs, which a trainer may cast.

    Samples that are equal in that dtype are ambiguous, so they are never found.
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

    def are_foreign(self, inputs: torch.Tensor) -> bool:
        """Whether none of the first of these rows is a sample that was rounded to 16 bits."""
        rows = own_part(inputs).detach().reshape(-1, 1, self._features)[:_FIRST].double().cpu()
        apart = (rows - self._distinct).abs().amax(-1).amin(-1)
        return bool((apart > _COARSEST * rows.abs().amax((1, 2))).all())
