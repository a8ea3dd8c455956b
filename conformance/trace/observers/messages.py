"""Messages from rank to rank: torch.distributed's `send` and `recv`, seen at c10d's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup, _world, get_process_group_ranks
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.common import exchange
from conformance.trace.emit import Recording
from conformance.trace.seams.c10d import intercepted
from conformance.trace.seams.patching import Seams
from conformance.trace.state.payloads import GRADIENTS, PARAMETERS, each_and_all
from conformance.trace.values import own_part, storage

OPERATORS: dict[str, str] = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}
"""The operators that isend, irecv, send, recv and batch_isend_irecv end in, each with the kind of its events."""


def observe(recording: Recording) -> Seams:
    """Have each message noted before it is sent, or waited for."""
    copies = _Copies(recording)

    def noting(kind: str) -> Callable[..., Any]:
        def around(
            original: Callable[..., Any], keys: torch._C.DispatchKeySet, tensors: Any, boxed: Any, *args: Any
        ) -> Any:
            if recording.during is None:
                recording.look()
            if recording.forwards:
                # Workers of a parameter server take no step that would note it, and may have left the group at the end.
                recording.topology()
            group = get_process_group_ranks(ProcessGroup.unbox(boxed))
            *peers, tag = args
            recording.note(
                kind,
                peer=group[peers[0]] if peers else None,
                tag=tag,
                **exchange(recording, tensors, "c10d", group),
                of=recording.payloads.seen_in(tensors) or copies.seen_in(tensors, is_filled=kind == "send"),
            )
            recording.keep_alive(_world.pg_map)
            return original(keys, tensors, boxed, *args)

        return around

    yield intercepted({name: noting(kind) for name, kind in OPERATORS.items()})


class _Copies:
    """Knows which buffers of the trainer's hold copies of gradients or parameters.

    A ring sends a flat copy of the gradients piece by piece, and adds to the pieces meanwhile. What was once such a
    copy is taken for one until the next training forward.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        # By address they would not be known: that of a buffer which was freed may be given to the next one.
        self._known: dict[StorageWeakRef, str] = {}
        self._forwards = 0

    def seen_in(self, tensors: Sequence[torch.Tensor], *, is_filled: bool) -> str | None:
        """What the buffers that `tensors` lie in hold; what is in one that is to be received into says nothing."""
        if self._forwards != self._recording.forwards:
            self._known.clear()
            self._forwards = self._recording.forwards
        for tensor in tensors:
            memory = StorageWeakRef(storage(tensor))
            if is_filled and memory not in self._known and (what := self._copied(tensor)) is not None:
                self._known[memory] = what
            if memory in self._known:
                return self._known[memory]
        return None

    def _copied(self, tensor: torch.Tensor) -> str | None:
        """What the memory that `tensor` lies in is a copy of: of all gradients, all parameters, or those of one."""
        own = own_part(tensor)
        if not self._recording.watched.is_readable or not own.is_floating_point() or own.is_sparse:
            return None
        whole = torch.empty(0, dtype=own.dtype, device=own.device).set_(own.untyped_storage())
        parameters, gradients = self._recording.payloads.originals()
        for what, originals in ((GRADIENTS, gradients), (PARAMETERS, parameters)):
            if any(_holds(whole, one) for one in each_and_all(originals)):
                return what
        return None


def _holds(whole: torch.Tensor, originals: Sequence[torch.Tensor]) -> bool:
    """Whether these are the values of `originals`, one after the other, and not just zeros."""
    parts = [own_part(original) for original in originals]
    if whole.numel() != sum(part.numel() for part in parts) or any(part.is_sparse for part in parts):
        return False
    # A message of gradients from a GPU may be sent from a buffer on the CPU.
    values = torch.cat([part.flatten().to(whole) for part in parts]) if parts else whole[:0]
    # torch.equal would take a nan, which an overflow leaves behind, for unequal to itself.
    return bool(values.any()) and torch.allclose(whole, values, rtol=0.0, atol=0.0, equal_nan=True)
