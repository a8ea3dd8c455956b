"""Buffers of the trainer's that hold copies of gradients or parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.state.payloads import GRADIENTS, PARAMETERS, Payloads, each_and_all
from conformance.trace.state.watched import Watched
from conformance.trace.values import own_part, storage


class Copies:
    """Tracks which of the trainer's buffers hold copies of gradients or parameters.

    A ring sends a flat copy of the gradients piece by piece, and adds to the pieces between messages. So a buffer that
    held such a copy counts as one until the next training forward.
    """

    def __init__(self, watched: Watched, payloads: Payloads) -> None:
        self._watched = watched
        self._payloads = payloads
        # Not by address: the address of a freed buffer may be reused.
        self._known: dict[StorageWeakRef, str] = {}

    def forget(self) -> None:
        """A training forward begins."""
        self._known.clear()

    def seen_in(self, tensors: Sequence[torch.Tensor], *, is_filled: bool) -> str | None:
        """What the buffers of `tensors` hold. `is_filled`: False for a receive, whose buffer has no content yet."""
        for tensor in tensors:
            memory = StorageWeakRef(storage(tensor))
            if is_filled and memory not in self._known and (what := self._copied(tensor)) is not None:
                self._known[memory] = what
            if memory in self._known:
                return self._known[memory]
        return None

    def _copied(self, tensor: torch.Tensor) -> str | None:
        """What the memory of `tensor` copies: gradients or parameters, of all or of one parameter; None if neither."""
        own = own_part(tensor)
        if not self._watched.is_readable or not own.is_floating_point():
            return None
        whole = torch.empty(0, dtype=own.dtype, device=own.device).set_(own.untyped_storage())
        with self._watched.reading:
            parameters, gradients = self._payloads.originals()
            for what, originals in ((GRADIENTS, gradients), (PARAMETERS, parameters)):
                if any(_holds(whole, one) for one in each_and_all(originals)):
                    return what
        return None


def _holds(whole: torch.Tensor, originals: Sequence[torch.Tensor]) -> bool:
    """Whether these are the values of `originals`, one after the other, and not just zeros."""
    parts = [own_part(original) for original in originals]
    if whole.numel() != sum(part.numel() for part in parts):
        return False
    # A message of gradients from a GPU may be sent from a buffer on the CPU.
    values = torch.cat([part.flatten().to(whole) for part in parts]) if parts else whole[:0]
    # torch.equal would take a nan, which an overflow leaves behind, for unequal to itself.
    return bool(values.any()) and torch.allclose(whole, values, rtol=0.0, atol=0.0, equal_nan=True)
