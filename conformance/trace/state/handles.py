"""Tracks asynchronous collectives whose handles a trainer got but has not waited for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.tensor_values import storage


@dataclass(frozen=True)
class _Issued:
    """A collective or receive of a group, noted as the event ``seq``. ``ends_all``: whether waiting for it also waits
    for earlier ones of the group. ``writes_to``: memory, not kept alive. ``handle`` returns the trainer's handle, until
    the trainer drops it; None if one waits for the memory, without a handle."""

    seq: int
    group: Hashable
    ends_all: bool
    writes_to: Sequence[StorageWeakRef]
    handle: Callable[[], Any] | None


class Handles:
    """Knows the collectives and receives that may still run, because nobody has waited for their handles."""

    def __init__(self) -> None:
        self._pending: dict[int, _Issued] = {}
        self._noted: dict[int, int] = {}

    def noted(self, seq: int) -> None:
        """This thread has noted the event `seq` for the collective that it will issue next."""
        self._noted[get_ident()] = seq

    def issuing(self) -> None:
        """This thread will call a function that issues a collective."""
        self._noted.pop(get_ident(), None)

    def issued(self, handle: Any, group: Hashable, tensors: Iterable[torch.Tensor], *, ends_all: bool = False) -> None:
        """The trainer got `handle` for the collective noted in this thread since `issuing`, which writes to `tensors`.
        None: torch keeps the handle with these."""
        seq = self._noted.pop(get_ident(), None)
        tensors = list(tensors)
        # On a GPU, streams order the work, and the trainer may wait for a stream instead.
        if seq is None or not all(tensor.is_cpu for tensor in tensors):
            return
        memory = [StorageWeakRef(storage(tensor)) for tensor in tensors]
        given: Callable[[], Any] | None = None
        if handle is not None:
            # Horovod's handles are numbers.
            given = (lambda: handle) if isinstance(handle, int) else ref(handle)
        self._pending[seq] = _Issued(seq, group, ends_all, memory, given)

    def waited_for(self, tensor: torch.Tensor) -> None:
        """The trainer has waited for the collectives that torch keeps with this tensor's memory."""
        memory = storage(tensor)._cdata
        for issued in list(self._pending.values()):
            if issued.handle is None and any(reference.cdata == memory for reference in issued.writes_to):
                del self._pending[issued.seq]

    def waited(self, handle: Any) -> None:
        """The trainer has waited for a handle, seen that it is done, or taken its future, for which any code may
        wait."""
        pending = [*self._pending.values()]
        issued = next((one for one in reversed(pending) if one.handle is not None and one.handle() == handle), None)
        if issued is None:
            return
        for one in pending:
            if one is issued or (issued.ends_all and one.group == issued.group and one.seq < issued.seq):
                self._pending.pop(one.seq, None)

    def unfinished(self, tensors: Iterable[torch.Tensor]) -> dict[str, list[int]]:
        """The fields `unfinished` and `unfinished_elsewhere` of a step that uses `tensors`, unless empty."""
        if not self._pending:
            return {}
        memory = {storage(tensor)._cdata for tensor in tensors}
        found: dict[str, list[int]] = {}
        for issued in self._pending.values():
            is_here = any(reference.cdata in memory for reference in issued.writes_to)
            found.setdefault("unfinished" if is_here else "unfinished_elsewhere", []).append(issued.seq)
        return found
