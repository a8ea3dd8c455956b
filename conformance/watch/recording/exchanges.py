"""How ranks exchange and average: groups, hooks, collectives in a backward pass, and small numbers that they reduce."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isclose
from types import FrameType, ModuleType
from typing import Any

import torch

from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import group_calls, wrapping
from conformance.watch import records
from conformance.watch.recording.holdings import is_plain
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.recording import Recording

_MOST, _MOST_ELEMENTS = 32, 8
"""Tensors of a window, and elements of each: gradients are larger."""

_NEAR = 1e-6
"""Relative: how the inverse of a float32 is rounded."""

_SUMS = {"allreduce": False, "allgather": True, "all_gather_single": True, "_allgather_base": True}
"""Methods of a process group that tell each rank of all, and whether the script has to sum up what it gets."""

_HOROVOD = "horovod.torch.mpi_ops"


@dataclass(slots=True)
class _Reduced:
    """steps: how many all optimizers had made by then. ranks: how many were asked. parts: what is summed up. own: what
    this rank has added."""

    steps: int
    ranks: int
    parts: Sequence[torch.Tensor]
    own: torch.Tensor


class Reduced:
    """Keeps the small tensors themselves: what the script does with them in place, they show."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._found: deque[_Reduced] = deque(maxlen=_MOST)

    def given(self, name: str, argument: Any) -> list[torch.Tensor]:
        """Copies of what a method is given to sum up, before it changes that."""
        if _SUMS.get(name, True):
            return []
        return [one.detach().clone() if _is_small(one) else one for one in _tensors(argument)]

    def keep(self, name: str, rank: int, ranks: int, given: Sequence[torch.Tensor], result: Any) -> None:
        """name: of the method. result: the first that it is given, which is changed."""
        if ranks < 2 or name not in _SUMS:
            return
        tensors = _tensors(result)
        if not tensors or not all(map(is_plain, tensors)):
            return
        is_one, size = len(tensors) == 1, tensors[0].numel()
        if not _SUMS[name]:
            for one, own in zip(tensors, given, strict=True):
                self._add(ranks, [one], own)
        elif is_one and 0 < size <= ranks * _MOST_ELEMENTS and size % ranks == 0:
            parts = [*tensors[0].detach().reshape(ranks, -1)]
            self._add(ranks, parts, parts[rank])
        elif len(tensors) == ranks and all(one.numel() == size for one in tensors):
            self._add(ranks, tensors, tensors[rank])

    def _add(self, ranks: int, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        if _is_small(parts[0]) and _is_small(own):
            self._found.append(_Reduced(self._steps, ranks, [one.detach() for one in parts], own.detach()))

    def among(self, numbers: Sequence[float]) -> list[list[float]]:
        """Those of these numbers that ranks have summed up or averaged since the last step, each with what this rank
        has added."""
        while self._found and self._found[0].steps != self._steps:
            self._found.popleft()
        if not numbers or not self._found:
            return []
        values = [pair for one in self._found for pair in _values(one)]
        found = ((n, next((own for value, own in values if isclose(n, value, rel_tol=_NEAR)), None)) for n in numbers)
        return [[number, own] for number, own in found if own is not None]

    @property
    def _steps(self) -> int:
        return sum(self._recording.steps.values())


def _flat(several: Iterable[Any]) -> Iterable[torch.Tensor]:
    for one in several:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _flat(one)


def _tensors(argument: Any) -> list[torch.Tensor]:
    return [argument] if isinstance(argument, torch.Tensor) else [*_flat(argument)]


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= _MOST_ELEMENTS and not tensor.is_complex()


def _values(one: _Reduced) -> list[tuple[float, float]]:
    """Sums, and means over the ranks, of each element, with what this rank has added."""
    own = one.own.flatten().tolist()
    sums = [*map(sum, zip(*(part.flatten().tolist() for part in one.parts), strict=True))]
    return [*zip(sums, own, strict=True), *((value / one.ranks, mine) for value, mine in zip(sums, own, strict=True))]


def _by_horovod(reduced: Reduced) -> Seams:
    """Keeps what Horovod reduces. torch's process groups are seen elsewhere."""

    def around(module: ModuleType, name: str) -> Callable[..., Any]:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            given = reduced.given(name, args[0]) if args else []
            result = original(*args, **kwargs)
            if args:
                reduced.keep(name, module.rank(), module.size(), given, result)
            return result

        return call

    def functions(module: ModuleType) -> Seams:
        for name in _SUMS.keys() & vars(module).keys():
            yield replaced(module, name, around(module, name))

    yield when_imported(_HOROVOD, functions)


def _by_ddp(recording: Recording) -> Seams:
    """Notes `Grouped`, `Hooked` and `Joined`."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    def construct(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(wrapper, *args, **kwargs)
        recording.once(records.Grouped(wrapper.process_group.size()))
        recording.wrappers.add(wrapper)
        return result

    def register(original: Any, wrapper: Any, state: Any, hook: Any) -> Any:
        recording.once(records.Hooked(getattr(hook, "__name__", type(hook).__name__)))
        return original(wrapper, state, hook)

    def register_builtin(original: Any, wrapper: Any, kind: Any) -> Any:
        recording.once(records.Hooked(str(kind)))
        return original(wrapper, kind)

    def enter(original: Any, join: Any) -> Any:
        recording.once(records.Joined())
        return original(join)

    yield from wrapping(construct)
    yield replaced(DistributedDataParallel, "register_comm_hook", register)
    yield replaced(DistributedDataParallel, "_register_builtin_comm_hook", register_builtin)
    yield replaced(Join, "__enter__", enter)


def note_wrapped(recording: Recording, number: int, optimizer: torch.optim.Optimizer) -> None:
    """Note `Wrapped` once, if it is so."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if any(id(parameter) in held for wrapper in list(recording.wrappers) for parameter in wrapper.parameters()):
        own = {name for wrapper in list(recording.wrappers) for name in getattr(wrapper, "parameters_to_ignore", ())}
        pairs = [pair for wrapper in list(recording.wrappers) for pair in wrapper.named_parameters()]
        named = [(name.removeprefix("module."), parameter) for name, parameter in pairs]
        left, inside = (
            recording.parameters.numbers([one for name, one in named if (name in own) == is_left])
            for is_left in (True, False)
        )
        recording.once(records.Wrapped(number, left, inside))


_NAMES = (
    *("allreduce", "allgather", "_allgather_base", "all_gather_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("alltoall", "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
)
"""Methods of a process group. What DDP reduces in C++ calls none of them."""

_FUNCTION, _BATCH_NORM = "torch.autograd.function", "torch.nn.modules._functions"
_MOST_FRAMES = 16
_MOST_EXCHANGED = 64
"""Of such records: gradients may come in another order each time."""


def _in_groups(recording: Recording, leaves: Leaves, reduced: Reduced) -> Seams:
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
        if len(noted) < _MOST_EXCHANGED and _is_of_a_function(frame):
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


def observe(recording: Recording, leaves: Leaves, reduced: Reduced) -> Seams:
    """Notes `Grouped`, `Hooked`, `Joined` and `Exchanged`, and keeps what is reduced outside of backward passes."""
    yield from _by_ddp(recording)
    yield from _in_groups(recording, leaves, reduced)
    yield from _by_horovod(reduced)
