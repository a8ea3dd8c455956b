"""Where in a parameter the shard lies that a rank holds of it, as FSDP2 and other users of DTensor split it, or as a
wrapper says that keeps parts of parameters in flat tensors."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import torch

_AT = "_conformance_at"


def places(tensor: Any) -> tuple[int, ...] | None:
    """The flat positions of the elements that this rank holds of a tensor that is split over ranks, in the order in
    which it holds them. None if the tensor is not split, or nothing says how."""
    if (said := getattr(tensor, _AT, None)) is not None:
        return tuple(said)
    placements, mesh = getattr(tensor, "placements", ()), getattr(tensor, "device_mesh", None)
    at = None if mesh is None else mesh.get_coordinate()
    if mesh is None or at is None or all(placement.is_replicate() for placement in placements):
        return None
    splits = []
    for placement, part, parts in zip(placements, at, mesh.shape, strict=True):
        # A strided shard, as beside tensor parallelism, is not one block of its dimension.
        if type(placement).__name__ == "Shard":
            splits.append((placement.dim, part, parts))
        elif not placement.is_replicate():
            return None
    return _places(tuple(tensor.shape), tuple(splits))


def placed(part: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """`part`, known to be the elements from `start` on of a tensor of this size."""
    if part.numel() < size:
        setattr(part, _AT, range(start, start + part.numel()))
    return part


@lru_cache(maxsize=256)
def _places(shape: tuple[int, ...], splits: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    """What is left of `shape` after each split (dimension, part, parts). As in `torch.chunk`, all parts but the last
    ones have the same length, and these may be shorter or empty."""
    kept = [range(length) for length in shape]
    for dim, part, parts in splits:
        length = -(-len(kept[dim]) // parts)
        kept[dim] = kept[dim][part * length : (part + 1) * length]
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return tuple(sum(map(int.__mul__, strides, at)) for at in product(*kept))
