"""Collectives of torch.distributed, seen at c10d's operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp, Work, get_process_group_ranks

from conformance.trace.common import note_collective
from conformance.trace.emit import Recording
from conformance.trace.seams.c10d import intercepted
from conformance.trace.seams.guarding import caller
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.state.payloads import GRADIENTS
from conformance.trace.values import tensors_in

PAYLOADS: dict[str, int | None] = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "broadcast_": 0,
    "reduce_": 0,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "gather_": 1,
    "scatter_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "barrier": None,
    "monitored_barrier_": None,
}
"""The operators that are watched, with the position of the argument that holds what a rank puts in."""


def observe(recording: Recording) -> Seams:
    """Records each collective before it is issued, including those that DDP issues in C++.

    Also tracks what torch broadcasts in coalesced buffers: parameters when DDP is constructed; in DDP's forward only
    the model's buffers, such as those of batch norm.
    """

    def broadcast(original: Any, group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        payloads = recording.payloads
        with payloads.carrying(None if recording.is_inside("forward") else payloads.seen_in(tensors)):
            return original(group, tensors, *args, **kwargs)

    yield intercepted({name: _noting(recording, name) for name in PAYLOADS})
    yield replaced(torch.distributed, "_broadcast_coalesced", broadcast)


def _noting(recording: Recording, name: str) -> Callable[..., Any]:
    payload = PAYLOADS[name]
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
    """The name of a reduction that is on its way to C++. torch 2.6 does not let Python see which it is."""
    op = getattr(boxed, "op", None)
    return "unknown" if op is None else ReduceOp.RedOpType(op()).name.lower()


@cache
def _positions(name: str) -> dict[str, int]:
    """The positions of an operator's arguments."""
    operator = getattr(torch.ops.c10d, name).default
    return {argument.name: position for position, argument in enumerate(operator._schema.arguments)}


def _is_called_by_the_engine(caller: Any) -> bool:
    """Whether the autograd engine issues a collective with no Python code in between: then it is DDP's reducer.

    The reducer also shares which parameters were used, but in integers.
    """
    return caller is None or caller.f_code is _engine_run_backward.__code__
