"""Collectives of a script's own within a backward pass, as those around a layer that is split over the ranks."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced
from conformance.watch import records
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.recording import Recording

_NAMES = (
    *("allreduce", "allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base"),
    *("alltoall", "alltoall_base", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
)
"""Methods of a process group. What DDP reduces in C++ calls none of them."""

_FUNCTION, _BATCH_NORM = "torch.autograd.function", "torch.nn.modules._functions"
_MOST_FRAMES = 16
_MOST = 64
"""Of such records: gradients may come in another order each time."""


def observe(recording: Recording, leaves: Leaves) -> Seams:
    """Notes `Exchanged`."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.distributed_c10d import ProcessGroup

    noted: set[frozenset[int]] = set()

    def issue(original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        if "backward" in recording.inside and len(noted) < _MOST and _is_of_a_function(sys._getframe()):
            numbers = frozenset(leaves.reached)
            if numbers and numbers not in noted and group.size() > 1:
                noted.add(numbers)
                recording.note(records.Exchanged(sorted(numbers)))
        return original(group, *args, **kwargs)

    for name in _NAMES:
        if name in vars(ProcessGroup):
            yield replaced(ProcessGroup, name, issue)


def _is_of_a_function(frame: FrameType | None) -> bool:
    """Whether it is a node of the graph that calls, and no hook, which may look at a gradient or average it. The
    statistics of batches say nothing of the layers."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        name = frame.f_globals.get("__name__")
        if name in (_FUNCTION, _BATCH_NORM):
            return bool(name == _FUNCTION)
        frame = frame.f_back
    return False
