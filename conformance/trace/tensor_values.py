"""Converts tensors to plain JSON values, and finds the position of a rank's shard in its parameter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, pairwise, product
from math import isfinite, prod
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor

Number: TypeAlias = float | str | None

_ORDINARY = {torch.Tensor, torch.nn.Parameter}
_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def number(value: float) -> Number:
    """`value`, or one of "nan", "inf", "-inf", for which JSON has no numbers."""
    return value if isfinite(value) else str(value)


def values(tensors: Iterable[torch.Tensor | None], sizes: Iterable[int]) -> list[Number]:
    """All elements of `tensors`, one after the other, None where this rank has no value: for a missing or valueless
    tensor, for other ranks' shards, and for a whole tensor if the position of this rank's shard is unknown."""
    flat: list[Number] = []
    for tensor, size in zip(tensors, sizes, strict=True):
        found = [] if tensor is None else elements(tensor)
        at = places(tensor) if len(found) < size else None
        if at is not None and len(at) == len(found):
            held = dict(zip(at, found, strict=True))
            found = [held.get(place) for place in range(size)]
        flat += found if len(found) == size else [None] * size
    return flat


def picked(tensor: torch.Tensor | None, used: Sequence[int], size: int) -> list[Number]:
    """The `used` elements of a large tensor of this size, then the least and the largest of all others. All are None if
    this rank has only a part."""
    part = torch.empty(0) if tensor is None else own_part(tensor).flatten()
    if part.numel() != size:
        return [None] * (len(used) + 2)
    others = [part[start + 1 : end] for start, end in pairwise([-1, *used, size]) if end > start + 1]
    extremes = torch.stack([end for one in others for end in torch.aminmax(one)])
    return elements(torch.cat([part[list(used)], torch.stack(torch.aminmax(extremes))]))


def elements(tensor: torch.Tensor) -> list[Number]:
    """All elements of this rank's part of a tensor, one after the other; [] if it has no values."""
    # This runs dozens of times a step, so it makes as few calls as possible. `tolist` works without `detach`, and
    # raises for a tensor without memory.
    found: Any = None
    if type(tensor) in _ORDINARY and tensor.dtype in _FLOATS and tensor.is_cpu:
        try:
            found = tensor.tolist()
        except RuntimeError:
            found = None
    if found is None:
        part = _dense(tensor)
        if part is None:
            return []
        # Python's floats are float64 already.
        found = (part if part.dtype in _FLOATS else part.double()).tolist()
    if type(found) is float:
        found = [found]
    while found and type(found[0]) is list:
        found = found[0] if len(found) == 1 else list(chain.from_iterable(found))
    return found if isfinite(sum(found)) else [number(value) for value in found]


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, detached, dense and of torch's own class: all of it unless sharded. Empty if there
    are no values to read."""
    part = _dense(tensor)
    return torch.empty(0, dtype=tensor.dtype) if part is None else part.detach()


def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory of `tensor` on this rank; empty if it has none."""
    part = _readable(tensor)
    if part is None:
        return torch.UntypedStorage()
    if part.layout is not torch.strided:
        part = part.detach()._values() if part.is_sparse else part.detach().values()
    return part.untyped_storage()


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """`_readable`, made dense."""
    part = _readable(tensor)
    return part if part is None or part.layout is torch.strided else part.to_dense()


def _readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor of torch's own class with this rank's part of `tensor`; inside `vmap`, with the whole batch. None if
    there is nothing to read: meta and fake tensors, freed memory, and classes whose values only they can compute."""
    if type(tensor) not in _ORDINARY:
        inner = _inside(tensor)
        return None if inner is None else _readable(inner)
    if _is_wrapped(tensor):
        return _readable(torch._C._functorch.get_unwrapped(tensor))
    if tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return None
    if tensor.layout is not torch.strided:
        return None if tensor.is_mkldnn else tensor
    try:
        return tensor if tensor.untyped_storage().nbytes() or not tensor.numel() else None
    except NotImplementedError:
        # A tensor in the `vmap` of `torch.autograd.grad(..., is_grads_batched=True)`, which nothing else marks.
        return None


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with the values of a tensor of another class, without running that class's code."""
    if isinstance(tensor, FakeTensor):
        return None
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return _wrapped(tensor)
    with torch._C._DisableTorchDispatch():
        return tensor.as_subclass(torch.Tensor)


def _wrapped(tensor: Any) -> torch.Tensor | None:
    """The tensor that a tensor without memory wraps. A foreign wrapper is understood only if it has no further context,
    or if all its tensors are equal."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, context = tensor.__tensor_flatten__()
    first, *others = filter(torch.is_tensor, (getattr(tensor, name) for name in names))
    # A DTensor may be a sum that is still to be taken over the ranks.
    if first.dtype != tensor.dtype or any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return None
    if others:
        are_same = first.shape == tensor.shape and all(elements(one) == elements(first) for one in others)
        return first if are_same else None
    return first if context is None or type(tensor).__module__.startswith("torch.distributed.") else None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor itself, or all tensors in nested lists, tuples and values of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


_AT = "_conformance_at"


def places(tensor: Any) -> tuple[int, ...] | None:
    """The flat positions of this rank's elements of a tensor that is split over ranks, in their order here. None if the
    tensor is not split, or nothing says how."""
    if (said := getattr(tensor, _AT, None)) is not None:
        return tuple(said)
    placements, mesh = getattr(tensor, "placements", ()), getattr(tensor, "device_mesh", None)
    at = None if mesh is None else mesh.get_coordinate()
    if mesh is None or at is None or all(placement.is_replicate() for placement in placements):
        return None
    splits = []
    for placement, part, parts in zip(placements, at, mesh.shape, strict=True):
        # A strided shard, as with tensor parallelism, is not one block of its dimension.
        if type(placement).__name__ == "Shard":
            splits.append((placement.dim, part, parts))
        elif not placement.is_replicate():
            return None
    return _places(tuple(tensor.shape), tuple(splits))


def placed(part: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """`part`, marked as the elements from `start` on of a tensor of this size."""
    if part.numel() < size:
        setattr(part, _AT, range(start, start + part.numel()))
    return part


@lru_cache(maxsize=256)
def _places(shape: tuple[int, ...], splits: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    """The flat positions left of `shape` after each split (dimension, part, parts). As in `torch.chunk`, all parts have
    the same length, except the last ones, which may be shorter or empty."""
    kept = [range(length) for length in shape]
    for dim, part, parts in splits:
        length = -(-len(kept[dim]) // parts)
        kept[dim] = kept[dim][part * length : (part + 1) * length]
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    return tuple(sum(map(int.__mul__, strides, at)) for at in product(*kept))
