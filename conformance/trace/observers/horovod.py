"""Horovod: its collectives, seen at the functions of its module through which all of them pass, and what its optimizer
does with gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from time import sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from conformance.trace.observers.collectives import GRADIENTS, flat
from conformance.trace.seams.importing import when_imported
from conformance.trace.seams.patching import replaced

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

MODULE = "horovod.torch.mpi_ops"
OPTIMIZER_MODULE = "horovod.torch.optimizer"

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

WITHOUT_PAYLOAD: dict[str, str] = {"horovod_torch_barrier": "barrier", "horovod_torch_join": "join"}
"""Functions of Horovod's library in which ranks meet and put in nothing, each with the operation that its events name.

Those of its module are imported by their names into `horovod.torch`, and call these.
"""

REDUCTIONS = {"Average": "avg", "Sum": "sum", "Adasum": "adasum", "Min": "min", "Max": "max", "Product": "product"}
"""Horovod's names of reductions, each with the one that events have."""

WAIT = "horovod_torch_wait_and_clear"
"""The function of Horovod's library that waits for a collective to end, and yields the processor over and over."""

# Seconds.
_PAUSE = 1e-4

GRADIENT_FUNCTIONS = ("_allreduce_grad_async", "_grouped_allreduce_grad_async", "_sparse_allreduce_grad_async")
"""Methods of Horovod's optimizer that issue its averages, of gradients or of compressed copies."""


def horovod_settings(optimizer: torch.optim.Optimizer) -> tuple[bool, int | None]:
    """Whether an optimizer is Horovod's, and its `backward_passes_per_step`."""
    synchronize = inspect.getattr_static(optimizer, "synchronize", None)
    is_horovods = getattr(synchronize, "__module__", None) == OPTIMIZER_MODULE
    return is_horovods, getattr(optimizer, "backward_passes_per_step", None) if is_horovods else None


def synchronizes(optimizer: torch.optim.Optimizer) -> bool | None:
    """Whether a step of Horovod's optimizer waits for the averages itself; None for another optimizer.

    It does unless it is within `skip_synchronize`.
    """
    should_synchronize: bool | None = getattr(optimizer, "_should_synchronize", None)
    return should_synchronize


class HorovodCalls:
    """Notes Horovod's collectives, and calls of its optimizers."""

    def __init__(self, recorder: Recorder, stack: ExitStack) -> None:
        self._recorder = recorder
        self._stack = stack

    def observe_operations(self, module: ModuleType) -> None:
        """To be called with Horovod's module of operations."""
        for name, operation in OPERATIONS.items():
            self._stack.enter_context(replaced(module, name, self._noting(module, operation)))
        for name, operation in WITHOUT_PAYLOAD.items():
            self._stack.enter_context(replaced(module.mpi_lib, name, self._meeting(module, operation)))
        self._stack.enter_context(replaced(module.mpi_lib, WAIT, sleeping_until(module.mpi_lib.horovod_torch_poll)))

    def observe_optimizers(self, module: ModuleType) -> None:
        """To be called with Horovod's module of optimizers.

        `DistributedOptimizer` makes a class of a copy of these functions for each optimizer that it is given.
        """
        owner = module._DistributedOptimizer
        for name in GRADIENT_FUNCTIONS:
            self._stack.enter_context(replaced(owner, name, self._carry_gradients))
        for around in (self.synchronize, self.skip_synchronize):
            self._stack.enter_context(replaced(owner, around.__name__, around))

    def synchronize(self, original: Callable[..., None], optimizer: torch.optim.Optimizer) -> None:
        """Around `synchronize` of Horovod's optimizer."""
        recorder = self._recorder
        recorder.gradients.look()
        number = recorder.optimizer(optimizer)
        recorder.note("synchronize", optimizer=number, in_step=recorder.is_doing("step"))
        with recorder.doing("synchronize"), recorder.collectives.carrying(GRADIENTS):
            original(optimizer)
        recorder.gradients.known()

    @contextmanager
    def skip_synchronize(
        self, original: Callable[..., AbstractContextManager[None]], optimizer: torch.optim.Optimizer
    ) -> Iterator[None]:
        """Around `skip_synchronize` of Horovod's optimizer."""
        number = self._recorder.optimizer(optimizer)
        with original(optimizer):
            self._recorder.note("skip_synchronize_enter", optimizer=number)
            try:
                yield
            finally:
                self._recorder.note("skip_synchronize_exit", optimizer=number)

    def _carry_gradients(self, original: Callable[..., Any], *args: Any) -> Any:
        with self._recorder.collectives.carrying(GRADIENTS):
            return original(*args)

    def _noting(self, module: ModuleType, operation: str) -> Callable[..., Any]:
        names = {getattr(module, name): reduction for name, reduction in REDUCTIONS.items()}

        def around(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(original).bind(tensors, *args, **kwargs).arguments
            ranks = given["process_set"].ranks
            self._recorder.collectives.note(
                operation,
                list(flat(tensors)),
                "horovod",
                list(range(module.size())) if ranks is None else list(ranks),
                names[given["op"]] if "op" in given else None,
            )
            return original(tensors, *args, **kwargs)

        return around

    def _meeting(self, module: ModuleType, operation: str) -> Callable[..., Any]:
        def around(original: Any, *args: Any) -> Any:
            # A barrier's only argument is its process set; all ranks join.
            process_set = args[0] if operation == "barrier" else module.global_process_set.process_set_id
            group = module._basics._get_process_set_ids_and_ranks()[process_set]
            self._recorder.collectives.note(operation, [], "horovod", list(group), None)
            return original(*args)

        return around


def sleeping_until(is_done: Callable[[int], bool]) -> Callable[..., None]:
    """Around `WAIT`: where there are fewer cores than ranks, the others and Horovod's own threads need them."""

    def around(original: Callable[[int], None], handle: int) -> None:
        while not is_done(handle):
            sleep(_PAUSE)
        original(handle)

    return around


@contextmanager
def observing_horovod(recorder: Recorder) -> Iterator[None]:
    """Have Horovod's collectives, its optimizers' `synchronize` and `skip_synchronize` noted."""
    with ExitStack() as stack:
        calls = HorovodCalls(recorder, stack)
        acts = {MODULE: calls.observe_operations, OPTIMIZER_MODULE: calls.observe_optimizers}
        stack.enter_context(when_imported(acts))
        yield
