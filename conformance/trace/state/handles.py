"""Asynchronous collectives whose handles a trainer got, and has not waited for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.values import storage


@dataclass(frozen=True)
class _Issued:
    """What was issued in a group, and noted as the event ``seq``. Waiting for it also waits for what came before it in
    the group, if ``ends_all``. ``writes_to``: memory, which is not kept alive. ``handle`` gives the trainer's, until it
    drops it; None where who waits names the memory, and gets no handle."""

    seq: int
    group: Hashable
    ends_all: bool
    writes_to: Sequence[StorageWeakRef]
    handle: Callable[[], Any] | None


class Handles:
    """Knows which collectives and receives may still be under way, because nobody has waited for their handles."""

    def __init__(self) -> None:
        self._pending: dict[int, _Issued] = {}
        self._noted: dict[int, int] = {}

    def noted(self, seq: int) -> None:
        """This thread has noted, as the event `seq`, what it is about to issue."""
        self._noted[get_ident()] = seq

    def issuing(self) -> None:
        """This thread is going to call a function that issues something."""
        self._noted.pop(get_ident(), None)

    def issued(self, handle: Any, group: Hashable, tensors: Iterable[torch.Tensor], *, ends_all: bool = False) -> None:
        """The trainer got `handle` for what this thread has noted since `issuing`, which writes to `tensors`; None:
        torch has kept it with these."""
        seq = self._noted.pop(get_ident(), None)
        tensors = list(tensors)
        # On a GPU streams order what happens, and the trainer may wait for those.
        if seq is None or not all(tensor.is_cpu for tensor in tensors):
            return
        memory = [StorageWeakRef(storage(tensor)) for tensor in tensors]
        given: Callable[[], Any] | None = None
        if handle is not None:
            # Horovod's handles are numbers.
            given = (lambda: handle) if isinstance(handle, int) else ref(handle)
        self._pending[seq] = _Issued(seq, group, ends_all, memory, given)

    def waited_for(self, tensor: torch.Tensor) -> None:
        """The trainer has waited for whatever torch has kept with this memory."""
        memory = storage(tensor)._cdata
        for issued in list(self._pending.values()):
            if issued.handle is None and any(reference.cdata == memory for reference in issued.writes_to):
                del self._pending[issued.seq]

    def waited(self, handle: Any) -> None:
        """The trainer has waited for a handle, has seen that it is completed, or has asked for its future, which may
        be waited for anywhere."""
        pending = [*self._pending.values()]
        issued = next((one for one in reversed(pending) if one.handle is not None and one.handle() == handle), None)
        if issued is None:
            return
        for one in pending:
            if one is issued or (issued.ends_all and one.group == issued.group and one.seq < issued.seq):
                self._pending.pop(one.seq, None)

    def unfinished(self, tensors: Iterable[torch.Tensor]) -> dict[str, list[int]]:
        """The fields `unfinished` and `unfinished_elsewhere` of a step that uses `tensors`; without what is empty."""
        if not self._pending:
            return {}
        memory = {storage(tensor)._cdata for tensor in tensors}
        found: dict[str, list[int]] = {}
        for issued in self._pending.values():
            is_here = any(reference.cdata in memory for reference in issued.writes_to)
            found.setdefault("unfinished" if is_here else "unfinished_elsewhere", []).append(issued.seq)
        return found
