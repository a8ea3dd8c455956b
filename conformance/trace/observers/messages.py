"""Messages from rank to rank: torch.distributed's `send` and `recv`, seen at c10d's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup, get_process_group_ranks

from conformance.trace.common import exchange
from conformance.trace.emit import Recording
from conformance.trace.seams.c10d import intercepted
from conformance.trace.seams.patching import Seams

OPERATORS: dict[str, str] = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}
"""The operators that isend, irecv, send, recv and batch_isend_irecv end in, each with the kind of its events."""


def observe(recording: Recording) -> Seams:
    """Records each message before it is sent or waited for."""

    def noting(kind: str) -> Callable[..., Any]:
        def around(
            original: Callable[..., Any], keys: torch._C.DispatchKeySet, tensors: Any, boxed: Any, *args: Any
        ) -> Any:
            if recording.during is None:
                recording.look()
            group = get_process_group_ranks(ProcessGroup.unbox(boxed))
            *peers, tag = args
            # A rank may leave its process group before it steps or ends.
            recording.topology()
            of = recording.payloads.seen_in(tensors) or recording.copies.seen_in(tensors, is_filled=kind == "send")
            seq = recording.note(
                kind,
                peer=group[peers[0]] if peers else None,
                tag=tag,
                **exchange(recording, tensors, "c10d", group),
                of=of,
                **(recording.payloads.zeros(tensors, of) if kind == "send" else {}),
            )
            recording.handles.noted(seq)
            recording.keep_groups()
            return original(keys, tensors, boxed, *args)

        return around

    yield intercepted({name: noting(kind) for name, kind in OPERATORS.items()})
