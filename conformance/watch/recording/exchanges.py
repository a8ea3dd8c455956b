"""Collectives of a script's own: those in a backward pass, as around a layer that is split over the ranks, and those
of small tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import group_calls
from conformance.watch import records
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.reduced import Reduced

_NAMES = (
    *("allreduce", "allgather", "_allgather_base", "all_gather_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("alltoall", "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
)
"""Methods of a process group. What DDP reduces in C++ calls none of them."""

_FUNCTION, _BATCH_NORM = "torch.autograd.function", "torch.nn.modules._functions"
_MOST_FRAMES = 16
_MOST = 64
"""Of such records: gradients may come in another order each time."""


def observe(recording: Recording, leaves: Leaves, reduced: Reduced) -> Seams:
    """Notes `Exchanged`, and keeps what is reduced outside of backward passes."""
    if not torch.distributed.is_available():
        return
    noted: set[frozenset[int]] = set()

    def around(name: str) -> Callable[..., Any]:
        def issue(original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
            if recording.is_inside("backward"):
                note(group, sys._getframe())
                return original(group, *args, **kwargs)
            given = reduced.given(name, args[0]) if args else []
            result = original(group, *args, **kwargs)
            if args:
                reduced.keep(name, group.rank(), group.size(), given, args[0])
            return result

        return issue

    def note(group: Any, frame: FrameType) -> None:
        if len(noted) < _MOST and _is_of_a_function(frame):
            numbers = frozenset(leaves.reached)
            if numbers and numbers not in noted and group.size() > 1:
                noted.add(numbers)
                recording.note(records.Exchanged(sorted(numbers)))

    yield from group_calls({name: around(name) for name in _NAMES})


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
