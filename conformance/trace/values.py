"""How the recorder writes the values of tensors as JSON, exactly.

A finite float is written exactly (the float64 of a float32), any other as a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import chain
from math import isfinite
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

Number: TypeAlias = float | str | None


_NOTHING = nullcontext()
_ORDINARY = {torch.Tensor, torch.nn.Parameter}
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_transforms, _modes = torch._C._functorch.peek_interpreter_stack, torch._C._len_torch_dispatch_stack


def number(value: float) -> Number:
    """`value`, or one of "nan", "inf", "-inf", for which JSON has no numbers."""
    return value if isfinite(value) else str(value)


def values(tensors: Iterable[torch.Tensor | None], sizes: Iterable[int]) -> list[Number]:
    """All elements of `tensors`, one after the other. A tensor that is missing, that has no values, or of which this
    rank holds only a part, becomes `size` nulls."""
    flat: list[Number] = []
    with undisturbed():
        for tensor, size in zip(tensors, sizes, strict=True):
            found = None if tensor is None else elements(tensor)
            flat.extend([None] * size if found is None or len(found) != size else found)
    return flat


def elements(tensor: torch.Tensor) -> list[Number] | None:
    """All elements of the part of a tensor that this rank holds, one after the other; None if it has no values.

    To be called while `undisturbed`.
    """
    # Every call of torch counts: this runs dozens of times a step. `tolist` needs nothing detached.
    part = untransformed(tensor) if _is_wrapped(tensor) else tensor
    if hasattr(part, "to_local"):
        part = own_part(part)
    if not has_values(part):
        return None
    if part.is_sparse:
        part = part.to_dense()
    # Python's floats are float64 already.
    found = (part if part.is_floating_point() else part.double()).tolist()
    depth = part.dim()
    if depth == 0:
        found = [found]
    for _ in range(1, depth):
        found = found[0] if len(found) == 1 else list(chain.from_iterable(found))
    return found if isfinite(sum(found)) else [number(value) for value in found]


def undisturbed() -> AbstractContextManager[object]:
    """A context in which tensors are read as they are, whatever the trainer is in: a transform of `torch.func`, or a
    mode that would count what is read, or make it up."""
    if _transforms() is None and not _modes():
        return _NOTHING
    stack = ExitStack()
    stack.enter_context(torch._C._DisableFuncTorch())
    stack.enter_context(_disable_current_modes())
    return stack


def untransformed(tensor: torch.Tensor) -> torch.Tensor:
    """What the transforms of `torch.func` have wrapped: of `vmap`, the whole batch."""
    while _is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def has_values(part: torch.Tensor) -> bool:
    """Whether there is something to read: not on the meta device, nor fake, nor while its memory is freed."""
    if part.is_meta or (type(part) not in _ORDINARY and isinstance(part, FakeTensor)):
        return False
    return part.is_sparse or part.untyped_storage().nbytes() > 0 or part.numel() == 0


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
