"""Finds the payloads of collectives and messages: gradients, parameters, and the trainer's copies of these."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.distributed_c10d import Work
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.state.finding import MOST_ELEMENTS
from conformance.trace.state.nested import Nested
from conformance.trace.state.topology import is_averaging
from conformance.trace.state.watched import Watched
from conformance.trace.tensor_values import own_part, storage

GRADIENTS, PARAMETERS = "gradients", "parameters"

# The original, because a call of the replaced method would count as the trainer's waiting.
_is_completed = Work.is_completed

_HALF = torch.finfo(torch.bfloat16).eps
"""The rounding error of copies, which may have a 16-bit type."""


class Payloads:
    """Tracks hidden payloads of collectives, collectives that may still write to gradients, and the trainer's buffers
    that are copies of gradients or parameters.

    A ring sends a flat copy of the gradients piece by piece, and adds to the pieces between messages. So a buffer that
    was such a copy counts as one until the next training forward.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._carried = Nested[str | None]()
        self._under_way: list[Work] = []
        # Not by address, because the address of a freed buffer may be reused.
        self._copies: dict[StorageWeakRef, str] = {}
        self.carrying = self._carried.inside
        """`carrying(what)`: a context in which a framework's collectives carry `what`, in its own buffers."""

    def of(self, tensors: Sequence[torch.Tensor], *, reduces: bool) -> tuple[str | None, bool]:
        """The payload of a collective, and whether the trainer itself reduces gradients with it."""
        for what in self._carried:
            return what, False
        seen = self.seen_in(tensors, reduces=reduces)
        return seen, seen == GRADIENTS

    def seen_in(self, tensors: Sequence[torch.Tensor], *, reduces: bool = False) -> str | None:
        """GRADIENTS or PARAMETERS if those of the watched model share memory with `tensors`; else None.

        Copies of gradients, of all or of one parameter, count if the collective reduces them.
        """
        with self._watched.reading:
            # Comparing memory takes long in a model with many parameters that are averaged one by one.
            if self._watched.owners(tensors):
                return GRADIENTS
            gradients, parameters = self.originals()
            memory = {_address(tensor) for tensor in tensors} - {0}
            for what, originals in ((GRADIENTS, gradients), (PARAMETERS, parameters)):
                if not memory.isdisjoint(map(_address, originals)):
                    return what
            copied = _each_and_all(gradients) if reduces and self._watched.is_readable else []
            return GRADIENTS if any(_is_multiple(tensors, of) for of in copied) else None

    def copied_in(self, tensors: Sequence[torch.Tensor], *, is_filled: bool) -> str | None:
        """GRADIENTS or PARAMETERS if a buffer of `tensors` is a copy of those; else None. `is_filled`: False for a
        receive, whose buffer has no content yet."""
        for tensor in tensors:
            memory = StorageWeakRef(storage(tensor))
            if is_filled and memory not in self._copies and (what := self._copied(tensor)) is not None:
                self._copies[memory] = what
            if memory in self._copies:
                return self._copies[memory]
        return None

    def forget_copies(self) -> None:
        """Forget copies, when a training forward starts."""
        self._copies.clear()

    def _copied(self, tensor: torch.Tensor) -> str | None:
        """The originals that the memory of `tensor` copies, all or those of one parameter; None if it is no copy."""
        own = own_part(tensor)
        if not self._watched.is_readable or not own.is_floating_point():
            return None
        whole = torch.empty(0, dtype=own.dtype, device=own.device).set_(own.untyped_storage())
        with self._watched.reading:
            for what, originals in zip((GRADIENTS, PARAMETERS), self.originals(), strict=True):
                if any(_holds(whole, one) for one in _each_and_all(originals)):
                    return what
        return None

    def zeros(self, tensors: Sequence[torch.Tensor], of: str | None) -> dict[str, bool]:
        """The field ``zeros``: whether all elements are zero; {} unless `tensors` may be gradients."""
        parts = [own_part(tensor) for tensor in tensors if tensor.is_floating_point()]
        size = sum(part.numel() for part in parts)
        if not size or not self._watched.is_readable or size > MOST_ELEMENTS:
            return {}
        # A single zero is more often a flag.
        if of == GRADIENTS or (of is None and size == self._watched.size > 1):
            return {"zeros": not any(bool(part.any()) for part in parts)}
        return {}

    def originals(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The existing gradients and the parameters of the watched model."""
        parameters = [parameter for parameter in self._watched.exchanged if parameter is not None]
        return [parameter.grad for parameter in parameters if parameter.grad is not None], parameters

    def issued(self, work: Work) -> None:
        """Track a collective on gradients that the trainer has issued, which may write to them until it is done."""
        self._under_way.append(work)

    @property
    def are_changing_gradients(self) -> bool:
        """Whether such a collective, or one of Horovod's, is not yet done."""
        if self._under_way:
            self._under_way = [work for work in self._under_way if not _is_completed(work)]
        return len(self._under_way) > 0 or is_averaging()


def _each_and_all(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The possible originals of a copy: all `tensors`, and each one separately."""
    return [tensors, *([tensor] for tensor in tensors)]


def _address(tensor: torch.Tensor) -> int:
    """The address of the memory of `tensor`; 0 if it has none."""
    return storage(tensor).data_ptr()


def _is_multiple(tensors: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> bool:
    """Whether `tensors` have the values of `of`, up to rounding and, if there are several values, up to one factor."""
    copies, originals = ([own_part(one) for one in given if one.is_floating_point()] for given in (tensors, of))
    if sum(part.numel() for part in copies) != sum(part.numel() for part in originals):
        return False
    copy, original = _flat(copies), _flat(originals)
    # Zeros would be a multiple of anything.
    if not original.any() or not copy.any():
        return False
    largest = original.abs().argmax()
    factor = copy[largest] / original[largest] if original.numel() > 1 else 1.0
    return torch.allclose(copy, factor * original, rtol=_HALF, atol=0.0)


def _flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.empty(0, dtype=torch.float64), *(part.flatten().double().cpu() for part in parts)])


def _holds(whole: torch.Tensor, originals: Sequence[torch.Tensor]) -> bool:
    """Whether `whole` has the values of `originals`, one after the other, and not only zeros."""
    parts = [own_part(original) for original in originals]
    if whole.numel() != sum(part.numel() for part in parts):
        return False
    # A message of gradients from a GPU may be sent from a buffer on the CPU.
    values = torch.cat([part.flatten().to(whole) for part in parts]) if parts else whole[:0]
    # For torch.equal, a nan, as an overflow leaves, is unequal to itself.
    return bool(values.any()) and torch.allclose(whole, values, rtol=0.0, atol=0.0, equal_nan=True)
