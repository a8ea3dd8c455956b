"""Observes Horovod: its collectives, intercepted in its Python module, and its optimizer's synchronization."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from time import sleep
from types import ModuleType
from typing import Any

import torch

from conformance.trace.emit import Recording, note_collective
from conformance.trace.seams.guarding import surrounded
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.state.payloads import GRADIENTS
from conformance.trace.state.topology import MODULE, OPTIMIZER_MODULE
from conformance.trace.tensor_values import tensors_in

OPERATIONS = (
    *("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast", "alltoall"),
    *("reducescatter", "grouped_reducescatter"),
)
"""Operations with functions `_..._async` in Horovod's module; their first argument is the payload."""

WITHOUT_PAYLOAD = ("barrier", "join")
"""Operations of Horovod's library, `horovod_torch_...`, without a payload.

`horovod.torch` imports the module's functions, which call these, by name.
"""

REDUCTIONS = {"Average": "avg", "Sum": "sum", "Adasum": "adasum", "Min": "min", "Max": "max", "Product": "product"}
"""Horovod's names of reductions, each with the name in events."""

WAIT = "horovod_torch_wait_and_clear"
"""The function of Horovod's library that polls until a collective ends."""

POLL = "horovod_torch_poll"
"""The function of Horovod's library that tells whether a collective has ended."""

_PAUSE = 1e-4
"""Seconds."""


def observe(recording: Recording) -> Seams:
    """Records Horovod's collectives, and its optimizers' `synchronize` and `skip_synchronize`."""
    yield when_imported(MODULE, lambda module: _operations(recording, module))
    yield when_imported(OPTIMIZER_MODULE, lambda module: _optimizers(recording, module))


def _operations(recording: Recording, module: ModuleType) -> Seams:
    """The seams of Horovod's module of operations."""
    names = {getattr(module, name): reduction for name, reduction in REDUCTIONS.items()}

    def issuing(operation: str) -> Callable[..., Any]:
        def around(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(original).bind(tensors, *args, **kwargs).arguments
            ranks = given["process_set"].ranks
            group = list(range(module.size()) if ranks is None else ranks)
            reduce = names[given["op"]] if "op" in given else None
            note_collective(recording, operation, list(tensors_in(tensors)), "horovod", group, reduce)
            handle = original(tensors, *args, **kwargs)
            if len(group) > 1:
                recording.handles.issued(handle, MODULE, tensors_in(args[:1]))
            return handle

        return around

    def meeting(operation: str) -> Callable[..., Any]:
        def around(original: Any, *args: Any) -> Any:
            # A barrier's only argument is its process set; all ranks join.
            process_set = args[0] if operation == "barrier" else module.global_process_set.process_set_id
            group = list(module._basics._get_process_set_ids_and_ranks()[process_set])
            note_collective(recording, operation, [], "horovod", group, None)
            return original(*args)

        return around

    wait = sleeping_until(getattr(module.mpi_lib, POLL))

    def waiting(original: Callable[..., None], handle: int) -> None:
        wait(original, handle)
        recording.handles.waited(handle)

    def asking(original: Callable[..., int], handle: int) -> int:
        is_done = original(handle)
        if is_done:
            recording.handles.waited(handle)
        return is_done

    for operation in OPERATIONS:
        yield replaced(module, f"_{operation}_async", issuing(operation))
    for operation in WITHOUT_PAYLOAD:
        yield replaced(module.mpi_lib, f"horovod_torch_{operation}", meeting(operation))
    yield replaced(module.mpi_lib, WAIT, waiting)
    yield replaced(module.mpi_lib, POLL, asking)


def _optimizers(recording: Recording, module: ModuleType) -> Seams:
    """The seams of Horovod's module of optimizers.

    `DistributedOptimizer` makes a class with copies of these functions for each optimizer that it wraps.
    """

    def synchronize(original: Callable[..., None], optimizer: torch.optim.Optimizer) -> None:
        with recording.accounting():
            number = recording.optimizer(optimizer)
            recording.note("synchronize", optimizer=number, in_step=recording.is_inside("step"))
            with recording.inside("synchronize"), recording.payloads.carrying(GRADIENTS):
                original(optimizer)

    def skip_synchronize(
        original: Callable[..., AbstractContextManager[None]], optimizer: torch.optim.Optimizer
    ) -> AbstractContextManager[None]:
        number = recording.optimizer(optimizer)
        region = partial(recording.region, "skip_synchronize", optimizer=number)
        return surrounded(lambda: original(optimizer), region, __name__)

    owner = module._DistributedOptimizer
    yield replaced(owner, "synchronize", synchronize)
    yield replaced(owner, "skip_synchronize", skip_synchronize)


def sleeping_until(is_done: Callable[[int], bool]) -> Callable[..., None]:
    """Sleeps instead of polling around `WAIT`: with fewer cores than ranks, other ranks and threads need the core."""

    def around(original: Callable[[int], None], handle: int) -> None:
        while not is_done(handle):
            sleep(_PAUSE)
        original(handle)

    return around
