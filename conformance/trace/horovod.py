"""Horovod's collectives, seen at the functions of its module through which all of them pass."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from conformance.trace.collectives import payload
from conformance.trace.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

MODULE = "horovod.torch.mpi_ops"

OPERATIONS: dict[str, str] = {
    "_allreduce_async": "allreduce",
    "_grouped_allreduce_async": "grouped_allreduce",
    "_allgather_async": "allgather",
    "_grouped_allgather_async": "grouped_allgather",
    "_broadcast_async": "broadcast",
    "_alltoall_async": "alltoall",
    "_reducescatter_async": "reducescatter",
    "_grouped_reducescatter_async": "grouped_reducescatter",
}
"""Functions of Horovod's module, each with the operation that its events name; the payload comes first."""


class HorovodCollectives:
    """Notes Horovod's collectives from the moment that Horovod is imported, which may be in the trainer's
    function."""

    def __init__(self, recorder: Recorder, stack: ExitStack) -> None:
        self._recorder = recorder
        self._stack = stack
        self._is_observing = False

    def look(self) -> None:
        """Begin to observe if Horovod has been imported."""
        module = sys.modules.get(MODULE)
        if self._is_observing or module is None:
            return
        self._is_observing = True
        for name, operation in OPERATIONS.items():
            self._stack.enter_context(replaced(module, name, self._noting(operation)))

    def _noting(self, operation: str) -> Any:
        def around(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._recorder.note_collective(operation, payload(tensors), "horovod")
            return original(tensors, *args, **kwargs)

        return around
