"""The handles of asynchronous collectives and receives of torch.distributed, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup, Work

from conformance.trace.emit import Recording
from conformance.trace.seams.c10d import intercepted
from conformance.trace.seams.patching import Seams, replaced
from conformance.trace.seams.probes import group_calls
from conformance.trace.values import tensors_in

ISSUING = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "barrier", "recv", "recv_anysource"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter"),
    *("all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single"),
)
"""Methods of a process group that return a handle to Python; the first argument holds what they write to."""

WAITING = ("wait", "synchronize", "block_current_stream", "get_future", "get_future_result")
"""Methods of a handle that wait, or give what can be waited for."""

resolve: Any = torch._C._distributed_c10d._resolve_process_group

#: Whether functional collectives may wait for what others have issued; torch 2.6 may lack it.
_are_registered = getattr(torch._C._distributed_c10d, "_allow_inflight_collective_as_graph_input", lambda: False)

FUNCTIONAL = (
    *("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "broadcast_"),
    *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out"),
    *("all_to_all_single", "irecv"),
)
"""Functional collectives, and the receive. They return what they write to."""

ASKING = ("is_completed", "is_success")
"""Methods of a handle that say whether it is done."""


def observe(recording: Recording) -> Seams:
    """Tracks which handles nobody has waited for.

    DDP's reducer issues its collectives in C++, where Python gets no handles. Nor does it of functional collectives:
    torch keeps them, with the memory that is written to, until `wait_tensor`. What torch's own functions for them
    return calls that when it is first used.
    """
    handles = recording.handles

    def issuing(name: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
            handles.issuing()
            work = original(group, *args, **kwargs)
            # What is registered with its tensor is waited for in C++.
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
    """Whether what was issued later in a group may end earlier: gloo has several threads, other backends a queue."""
    cpu = torch.device("cpu")
    backend = group._get_backend(cpu) if cpu in group._device_types else None
    return int(getattr(getattr(backend, "options", None), "_threads", 1)) > 1
