"""Tensors as plain JSON values, and where in a parameter the shard lies that a rank holds of it."""

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
    """All elements of `tensors`, one after the other. A tensor that is missing or has no values becomes `size` nulls,
    and so does what other ranks hold of one, or all of it if nothing says which part this rank holds."""
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
    """Of a large tensor of this size the elements that are used, and the least and the largest of all others; as many
    nulls if this rank does not have all of it."""
    part = torch.empty(0) if tensor is None else own_part(tensor).flatten()
    if part.numel() != size:
        return [None] * (len(used) + 2)
    others = [part[start + 1 : end] for start, end in pairwise([-1, *used, size]) if end > start + 1]
    extremes = torch.stack([end for one in others for end in torch.aminmax(one)])
    return elements(torch.cat([part[list(used)], torch.stack(torch.aminmax(extremes))]))


def elements(tensor: torch.Tensor) -> list[Number]:
    """All elements of the part of a tensor that this rank holds, one after the other; none if it has no values."""
    # Every call counts: this runs dozens of times a step. `tolist` needs nothing detached, and refuses to read what has
    # no memory on the CPU.
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
    """The detached part of a tensor that this rank holds, ordinary and dense: all of it, unless it is sharded. An empty
    one if there are no values to read."""
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
    """The same as `_readable`, dense."""
    part = _readable(tensor)
    return part if part is None or part.layout is torch.strided else part.to_dense()


def _readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor of torch's own class that holds what this rank has of `tensor`: of one in `vmap`, the whole batch.
    None if there is nothing to read: on the meta device, of fake tensors, while the memory is freed, and of classes
    that alone know what their values are."""
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
        # Of the `vmap` in `torch.autograd.grad(..., is_grads_batched=True)`, which says nothing about itself.
        return None


def _inside(tensor: torch.Tensor) -> torch.Tensor | None:
    """What holds the values of a tensor of another class. It is not asked itself, as that would run its own code."""
    if isinstance(tensor, FakeTensor):
        return None
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return _wrapped(tensor)
    with torch._C._DisableTorchDispatch():
        return tensor.as_subclass(torch.Tensor)


def _wrapped(tensor: Any) -> torch.Tensor | None:
    """What a tensor without memory is a wrapper of. What others' wrappers mean is known only if they say nothing beside
    it, or hold the same several times."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, beside = tensor.__tensor_flatten__()
    first, *others = filter(torch.is_tensor, (getattr(tensor, name) for name in names))
    # A DTensor may be a sum that is still to be taken over the ranks.
    if first.dtype != tensor.dtype or any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return None
    if others:
        are_same = first.shape == tensor.shape and all(elements(one) == elements(first) for one in others)
        return first if are_same else None
    return first if beside is None or type(tensor).__module__.startswith("torch.distributed.") else None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """A tensor itself, or all tensors in nested lists, tuples and values of dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


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
