"""The handles of asynchronous collectives and receives of torch.distributed, and who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import ProcessGroup, Work

from conformance.trace.emit import Recording
from conformance.trace.seams.patching import Seams, replaced
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

#: Whether functional collectives may wait for what others have issued; torch 2.6 may lack it.
_are_registered = getattr(torch._C._distributed_c10d, "_allow_inflight_collective_as_graph_input", lambda: False)

ASKING = ("is_completed", "is_success")
"""Methods of a handle that say whether it is done."""


def observe(recording: Recording) -> Seams:
    """Tracks which handles nobody has waited for.

    DDP's reducer issues its collectives in C++, where Python gets no handles, and so do functional collectives.
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

    for name in ISSUING:
        # Their names differ between releases of torch.
        if name in vars(ProcessGroup):
            yield replaced(ProcessGroup, name, issuing(name))
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
