"""How the recorder writes the values of tensors as JSON, exactly.

A finite float is written exactly (the float64 of a float32), any other as a string.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch

Number: TypeAlias = float | str | None


def number(value: float) -> Number:
    """`value`, or one of "nan", "inf", "-inf", for which JSON has no numbers."""
    return value if math.isfinite(value) else str(value)


def values(tensors: Iterable[torch.Tensor | None], sizes: Iterable[int]) -> list[Number]:
    """All elements of `tensors`, one after the other. A tensor that is missing, or of which this rank holds only a
    part, becomes `size` nulls."""
    flat: list[Number] = []
    for tensor, size in zip(tensors, sizes, strict=True):
        part = None if tensor is None else own_part(tensor)
        if part is None or part.numel() != size:
            flat.extend([None] * size)
        else:
            dense = part.to_dense() if part.is_sparse else part
            # Python's floats are float64 already.
            exact = dense if dense.is_floating_point() else dense.double()
            flat.extend([value if math.isfinite(value) else str(value) for value in exact.flatten().tolist()])
    return flat


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """The detached part of a tensor that this rank holds: all of it, unless it is sharded."""
    own: Any = tensor.detach()
    part: torch.Tensor = own.to_local() if hasattr(own, "to_local") else own
    return part


def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of `tensor` on this rank."""
    own = own_part(tensor)
    return (own._values() if own.is_sparse else own).untyped_storage()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor itself, or all tensors in nested lists, tuples and values of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)
