"""Collectives within a backward pass, as those of a layer that is split over the ranks."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.recording import Recording

_NAMES = (
    *("allreduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base"),
    *("alltoall", "alltoall_base", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
)
"""Methods of a process group. What DDP reduces in C++ calls none of them."""

_BATCH_NORM = "torch.nn.modules._functions"
_MOST_FRAMES = 8


def observe(recording: Recording) -> Seams:
    """Notes `Exchanged`."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import ProcessGroup

    def issue(original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        if "backward" in recording.inside and group.size() > 1 and not _is_of_batch_norm(sys._getframe()):
            recording.once(records.Exchanged())
        return original(group, *args, **kwargs)

    for name in _NAMES:
        if name in vars(ProcessGroup):
            yield replaced(ProcessGroup, name, issue)


def _is_of_batch_norm(frame: FrameType | None) -> bool:
    """Whether statistics of batches are exchanged, which says nothing of the layers."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == _BATCH_NORM:
            return True
        frame = frame.f_back
    return False
