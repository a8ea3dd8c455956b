"""The elements of a model's parameters that are read: all of a small model, those that it uses of a large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch

from conformance.trace.shards import places
from conformance.trace.values import Number, elements, own_part, picked, values

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
