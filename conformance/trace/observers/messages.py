"""Messages from rank to rank: torch.distributed's `send` and `recv`, seen at c10d's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup, _world, get_process_group_ranks
from torch.multiprocessing.reductions import StorageWeakRef

from conformance.trace.observers.collectives import GRADIENTS, PARAMETERS, storage
from conformance.trace.seams.c10d import intercepted
from conformance.trace.values import own_part

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

OPERATORS: dict[str, str] = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}
"""The operators that isend, irecv, send, recv and batch_isend_irecv end in, each with the kind of its events."""


class Messages:
    """Notes messages, and knows which buffers of the trainer's hold copies of gradients or parameters.

    A ring sends a flat copy of the gradients piece by piece, and adds to the pieces meanwhile. What was once such a
    copy is taken for one until the next training forward.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # By address they would not be known: that of a buffer which is gone may be given to the next one.
        self._copies: dict[StorageWeakRef, str] = {}
        self._forwards = 0

    def note(self, kind: str, tensors: Sequence[torch.Tensor], group: list[int], peer: int | None, tag: int) -> None:
        """A message that this rank is about to send to `peer`, or to receive from it; None for from anyone."""
        recorder = self._recorder
        if recorder.during is None:
            recorder.gradients.look()
        if recorder.forwards:
            # Workers of a parameter server take no step that would note it, and may have left the group at the end.
            recorder.note_topology()
        recorder.note(
            kind,
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            elements=sum(tensor.numel() for tensor in tensors),
            peer=peer,
            group=group,
            tag=tag,
            via="c10d",
            phase="training" if recorder.forwards else "construction",
            during=recorder.during,
            of=self._carried(kind, tensors),
        )

    def _carried(self, kind: str, tensors: Sequence[torch.Tensor]) -> str | None:
        shared = self._recorder.collectives.seen_in(tensors)
        if shared is not None:
            return shared
        if self._forwards != self._recorder.forwards:
            self._copies.clear()
            self._forwards = self._recorder.forwards
        for tensor in tensors:
            memory = StorageWeakRef(storage(tensor))
            # What a buffer holds that is to be received into says nothing.
            if kind == "send" and memory not in self._copies and (what := self._copied(tensor)) is not None:
                self._copies[memory] = what
            if memory in self._copies:
                return self._copies[memory]
        return None

    def _copied(self, tensor: torch.Tensor) -> str | None:
        """What the memory that `tensor` lies in is a copy of: of all gradients, all parameters, or those of one."""
        watched = self._recorder.watched
        own = own_part(tensor)
        if not watched.is_readable or not own.is_floating_point() or own.is_sparse:
            return None
        whole = torch.empty(0, dtype=own.dtype, device=own.device).set_(own.untyped_storage())
        parameters = [parameter for parameter in watched.current if parameter is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for what, originals in ((GRADIENTS, gradients), (PARAMETERS, parameters)):
            if any(_holds(whole, one) for one in (originals, *([original] for original in originals))):
                return what
        return None


@contextmanager
def observing_messages(recorder: Recorder) -> Iterator[None]:
    """Have each message noted before it is sent, or waited for."""
    with intercepted({name: _noting(recorder, name) for name in OPERATORS}):
        yield


def _noting(recorder: Recorder, name: str) -> Callable[..., Any]:
    def around(
        original: Callable[..., Any], keys: torch._C.DispatchKeySet, tensors: Any, boxed: Any, *args: Any
    ) -> Any:
        group = get_process_group_ranks(ProcessGroup.unbox(boxed))
        *peers, tag = args
        recorder.messages.note(OPERATORS[name], tensors, group, group[peers[0]] if peers else None, tag)
        recorder.keep_alive(_world.pg_map)
        return original(keys, tensors, boxed, *args)

    return around


def _holds(whole: torch.Tensor, originals: Sequence[torch.Tensor]) -> bool:
    """Whether these are the values of `originals`, one after the other, and not just zeros."""
    parts = [own_part(original) for original in originals]
    if whole.numel() != sum(part.numel() for part in parts) or any(part.is_sparse for part in parts):
        return False
    # A message of gradients from a GPU may be sent from a buffer on the CPU.
    values = torch.cat([part.flatten().to(whole) for part in parts]) if parts else whole[:0]
    # torch.equal would take a nan, which an overflow leaves behind, for unequal to itself.
    return bool(values.any()) and torch.allclose(whole, values, rtol=0.0, atol=0.0, equal_nan=True)
