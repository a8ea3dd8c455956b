"""Observes collectives and messages of torch.distributed at c10d's operators, and the waits for their handles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp, Work, get_process_group_ranks

from conformance.trace.emit import Recording, exchange, note_collective
from conformance.trace.seams.guarding import caller
from conformance.trace.seams.patching import Seams, intercepted, replaced
from conformance.trace.seams.probes import group_calls
from conformance.trace.state.payloads import GRADIENTS
from conformance.trace.tensor_values import tensors_in

_IN_PLACE = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_TO_OTHERS = (
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    *("gather_", "scatter_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    *("alltoall_", "alltoall_base_"),
)
PAYLOADS = dict.fromkeys(_IN_PLACE, 0) | dict.fromkeys(_TO_OTHERS, 1)
"""The watched operators with a payload, and the position of the argument with a rank's input."""

MEETINGS = ("barrier", "monitored_barrier_")
"""The watched operators without a payload."""


def _collectives(recording: Recording) -> Seams:
    """Records each collective before it is issued, including those that DDP issues in C++.

    Also tracks what torch's coalesced broadcasts carry: parameters during DDP's construction; in DDP's forward only the
    model's buffers, such as those of batch norm.
    """

    def broadcast(original: Any, group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        payloads = recording.payloads
        with payloads.carrying(None if recording.is_inside("forward") else payloads.seen_in(tensors)):
            return original(group, tensors, *args, **kwargs)

    yield intercepted({name: _noting(recording, name) for name in (*PAYLOADS, *MEETINGS)})
    yield replaced(torch.distributed, "_broadcast_coalesced", broadcast)


def _noting(recording: Recording, name: str) -> Callable[..., Any]:
    payload = PAYLOADS.get(name)
    positions = _positions(name)

    def around(original: Callable[..., Any], keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        tensors = [] if payload is None else list(tensors_in(args[payload]))
        reduce = None
        if "reduce_op" in positions:
            reduce = reduction(args[positions["reduce_op"]])
        process_group = ProcessGroup.unbox(args[positions["process_group"]])
        group = get_process_group_ranks(process_group)
        by_reducer = _is_called_by_the_engine(caller(sys._getframe())) and all(map(torch.is_floating_point, tensors))
        with recording.payloads.carrying(GRADIENTS) if by_reducer else nullcontext():
            is_the_trainers = note_collective(recording, name, tensors, "c10d", group, reduce, process_group.group_name)
        recording.keep_groups()
        result = original(keys, *args)
        if is_the_trainers:
            recording.payloads.issued(Work.unbox(result[-1] if isinstance(result, tuple) else result))
        return result

    return around


def reduction(boxed: Any) -> str:
    """The name of a boxed reduction; "unknown" in torch 2.6, which hides it from Python."""
    op = getattr(boxed, "op", None)
    return "unknown" if op is None else ReduceOp.RedOpType(op()).name.lower()


@cache
def _positions(name: str) -> dict[str, int]:
    """The positions of an operator's arguments."""
    operator = getattr(torch.ops.c10d, name).default
    return {argument.name: position for position, argument in enumerate(operator._schema.arguments)}


def _is_called_by_the_engine(caller: Any) -> bool:
    """Whether the autograd engine issues a collective without Python code in between, which only DDP's reducer does.

    The reducer also exchanges which parameters were used, but as integers.
    """
    return caller is None or caller.f_code is _engine_run_backward.__code__


OPERATORS: dict[str, str] = {"send": "send", "recv_": "receive", "recv_any_source_": "receive"}
"""The operators behind isend, irecv, send, recv and batch_isend_irecv, each with the kind of its events."""


def _messages(recording: Recording) -> Seams:
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
            of = recording.payloads.seen_in(tensors) or recording.payloads.copied_in(tensors, is_filled=kind == "send")
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


ISSUING = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "recv", "recv_anysource"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter"),
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single"),
)
"""Methods of a process group that return a handle to Python. Their first argument has the tensors they write."""

WAITING = ("wait", "synchronize", "block_current_stream", "get_future", "get_future_result")
"""Methods of a handle that wait, or return something to wait for."""

resolve: Any = torch._C._distributed_c10d._resolve_process_group

#: Whether functional collectives may wait for what others have issued; missing in torch 2.6.
_are_registered = getattr(torch._C._distributed_c10d, "_allow_inflight_collective_as_graph_input", lambda: False)

FUNCTIONAL = (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_"),
    *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out"),
    *("all_to_all_single", "irecv"),
)
"""Functional collectives and the functional receive. They return the tensors they write."""

ASKING = ("is_completed", "is_success")
"""Methods of a handle that tell whether it is done."""


def _handles(recording: Recording) -> Seams:
    """Tracks handles that nobody has waited for.

    Python gets no handles from DDP's reducer, which issues its collectives in C++, nor from functional collectives:
    torch keeps these, with the memory they write, until `wait_tensor`. The results of torch's functional API call that
    on first use.
    """
    handles = recording.handles

    def issuing(name: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
            handles.issuing()
            work = original(group, *args, **kwargs)
            # C++ waits for a collective that is registered with its tensor.
            if group.size() > 1 and not _are_registered():
                written = list(tensors_in([*args, *kwargs.values()][:1]))
                handles.issued(work, group.group_name, written, ends_all=name == "barrier" or not _overtakes(group))
            return work

        return around

    def waiting(original: Callable[..., Any], work: Work, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        handles.waited(work)
        return result

    def asking(original: Callable[..., bool], work: Work) -> bool:
        is_done = original(work)
        if is_done:
            handles.waited(work)
        return is_done

    def functional(original: Callable[..., Any], keys: Any, *args: Any, **kwargs: Any) -> Any:
        handles.issuing()
        result = original(keys, *args, **kwargs)
        # Newer releases of torch also take the group itself.
        group = resolve(args[-1]) if isinstance(args[-1], str) else ProcessGroup.unbox(args[-1])
        if group.size() > 1:
            handles.issued(None, group.group_name, tensors_in(result))
        return result

    def wait_tensor(original: Callable[..., torch.Tensor], keys: Any, tensor: torch.Tensor) -> torch.Tensor:
        result = original(keys, tensor)
        handles.waited_for(tensor)
        return result

    operators = {name: functional for name in FUNCTIONAL if hasattr(torch.ops._c10d_functional, name)}
    yield intercepted({**operators, "wait_tensor": wait_tensor}, "_c10d_functional")
    yield from group_calls({name: issuing(name) for name in ISSUING})
    for name in WAITING:
        if name in vars(Work):
            yield replaced(Work, name, waiting)
    for name in ASKING:
        yield replaced(Work, name, asking)


def _overtakes(group: Any) -> bool:
    """Whether a later collective of a group may end earlier: gloo has several threads, other backends a queue."""
    cpu = torch.device("cpu")
    backend = group._get_backend(cpu) if cpu in group._device_types else None
    return int(getattr(getattr(backend, "options", None), "_threads", 1)) > 1


def observe(recording: Recording) -> Seams:
    """Records `collective`, `send` and `receive`, and tracks handles."""
    yield from _collectives(recording)
    yield from _messages(recording)
    yield from _handles(recording)
