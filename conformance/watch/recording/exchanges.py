"""Records communication between ranks: groups, hooks, collectives in backward passes, and reductions of few numbers."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from math import isclose
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams, replaced, when_imported
from conformance.trace.seams.probes import group_calls, wrapping
from conformance.watch import records
from conformance.watch.recording.holdings import is_plain, tensors
from conformance.watch.recording.leaves import Leaves
from conformance.watch.recording.recording import Recording, frames
from conformance.watch.recording.weights import remember_weights

_MOST = 32
"""Limit of tensors of a window."""

MOST_STATISTICS = 8
"""Largest number of elements of a count or a sum that divides losses."""

_NEAR = 1e-6
"""Relative: rounding of the inverse of a float32."""

_SUMS = {"allreduce": False, "allgather": True, "all_gather_single": True, "_allgather_base": True}
"""Methods of a process group that give each rank data of all, and whether the script must sum up the result."""

_HOROVOD = "horovod.torch.mpi_ops"
_SENDS = {"broadcast", "broadcast_", "broadcast_async_"}


class _Reduced(NamedTuple):
    """A reduction of a few numbers. steps: of all optimizers before. ranks: in the group. parts: the summands, or the
    sum. own: this rank's summand."""

    steps: int
    ranks: int
    parts: Sequence[torch.Tensor]
    own: torch.Tensor

    def values(self) -> Iterator[tuple[float, float, float]]:
        """The sum and the mean over the ranks of each element, and this rank's summand. None after FSDP1 freed them."""
        if not all(one.untyped_storage().nbytes() for one in (*self.parts, self.own)):
            return
        sums = map(sum, zip(*(part.flatten().tolist() for part in self.parts), strict=True))
        for total, own in zip(sums, self.own.flatten().tolist(), strict=True):
            yield total, total / self.ranks, own


class Reduced:
    """Keeps reduced tensors of few numbers; not copies, so later changes in place by the script count."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._found: deque[_Reduced] = deque(maxlen=_MOST)

    def run(self, name: str, call: Callable[[], Any], given: Any, group: Any, *, returns: bool) -> Any:
        """Calls a method of a group. returns: the result is a new tensor, as in Horovod; otherwise it is written into
        `given`."""
        if name not in _SUMS or group.size() < 2:
            return call()
        before = [] if _SUMS[name] else [one.detach().clone() if _is_small(one) else one for one in tensors([given])]
        result = call()
        found, rank, ranks = [*tensors([result if returns else given])], group.rank(), group.size()
        if not found or not all(map(is_plain, found)):
            return result
        size = found[0].numel()
        if not _SUMS[name]:
            for one, own in zip(found, before, strict=True):
                self._add(ranks, [one], own)
        elif len(found) == 1 and 0 < size <= ranks * MOST_STATISTICS and size % ranks == 0:
            parts = [*found[0].detach().reshape(ranks, -1)]
            self._add(ranks, parts, parts[rank])
        elif len(found) == ranks and all(one.numel() == size for one in found):
            self._add(ranks, found, found[rank])
        return result

    def _add(self, ranks: int, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        if _is_small(parts[0]) and _is_small(own):
            self._found.append(_Reduced(self._steps, ranks, [one.detach() for one in parts], own.detach()))

    def among(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers that ranks summed or averaged since the last step, each with this rank's summand."""
        values = self._values() if numbers else []
        found = ((number, next((own for *of, own in values if _is_near(number, of)), None)) for number in numbers)
        return [[number, own] for number, own in found if own is not None]

    def is_of_ranks(self, loss: Any, factors: Sequence[float]) -> bool:
        """Whether a loss, before some of its factors, is a sum or mean over ranks with different numbers, as if each
        had its own loss. factors: the last ones, from the last on."""
        apart = [of for *of, own in self._values() if not _is_near(own, of[1:])]
        if not apart:
            return False
        numbers = accumulate(factors, lambda number, factor: number / factor if factor else 0.0, initial=float(loss))
        return any(_is_near(number, of) for number in numbers for of in apart)

    def _values(self) -> list[tuple[float, float, float]]:
        while self._found and self._found[0].steps != self._steps:
            self._found.popleft()
        return [value for one in self._found for value in one.values()]

    @property
    def _steps(self) -> int:
        return sum(self._recording.steps.values())


def _is_near(number: float, others: Sequence[float]) -> bool:
    return any(isclose(number, other, rel_tol=_NEAR) for other in others)


def _is_small(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= MOST_STATISTICS and not tensor.is_complex()


def _by_horovod(recording: Recording, reduced: Reduced) -> Seams:
    """Keeps reductions and notes communication by Horovod, which does not use torch's process groups."""

    def around(module: ModuleType, name: str) -> Callable[..., Any]:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else None
            recording.given.add(tensors([given]), recording.backwards, _first_site(recording))
            return reduced.run(name, lambda: original(*args, **kwargs), given, module, returns=True)

        return call

    def functions(module: ModuleType) -> Seams:
        for name in (_SUMS.keys() | _SENDS) & vars(module).keys():
            yield replaced(module, name, around(module, name))

    yield when_imported(_HOROVOD, functions)


def _by_ddp(recording: Recording) -> Seams:
    """Notes `Grouped`, `Hooked`, `Joined` and `Rejoined`."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    def construct(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(wrapper, *args, **kwargs)
        recording.once(records.Grouped(wrapper.process_group.size()))
        recording.wrappers.add(wrapper)
        return result

    def register(original: Any, wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        # The arguments are a state and a hook, or a built-in kind of hook.
        hook = kwargs["hook"] if "hook" in kwargs else [*args, *kwargs.values()][-1]
        recording.once(records.Hooked(getattr(hook, "__name__", str(hook))))
        return original(wrapper, *args, **kwargs)

    def enter(original: Any, join: Any) -> Any:
        recording.once(records.Joined())
        return original(join)

    def leave(original: Any, join: Any, *raised: Any) -> Any:
        result = original(join, *raised)
        harmless(rejoin)()
        return result

    def rejoin() -> None:
        recording.rejoin()
        # The last rank with data has sent its weights to the others.
        for optimizer in recording.numbers.alive("optimizer"):
            if recording.optimizer(optimizer) in recording.steps:
                remember_weights(recording.parameters.held(optimizer))

    yield from wrapping(construct)
    yield replaced(DistributedDataParallel, "register_comm_hook", register)
    yield replaced(DistributedDataParallel, "_register_builtin_comm_hook", register)
    yield replaced(Join, "__enter__", enter)
    yield replaced(Join, "__exit__", leave)


def _first_site(recording: Recording) -> records.Site:
    """The line of a collective before the first step; later ones are at the same lines."""
    return None if recording.steps else recording.site()


def note_bound(recording: Recording, number: int, optimizer: torch.optim.Optimizer) -> None:
    """Notes `Wrapped` and `Shared` once if they apply."""
    steps = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = set(map(id, steps))
    if recording.given.has(steps, recording.backwards):
        lines = recording.given.lines.most_common(1)
        recording.once(records.Shared(number, [*lines[0][0]] if lines else None))
    wrappers = list(recording.wrappers)
    named = [(name.removeprefix("module."), one) for wrapper in wrappers for name, one in wrapper.named_parameters()]
    if any(id(parameter) in held for _, parameter in named):
        left = {name for wrapper in wrappers for name in getattr(wrapper, "parameters_to_ignore", ())}
        own = recording.parameters.numbers(one for name, one in named if name in left)
        inside = recording.parameters.numbers(one for name, one in named if name not in left)
        recording.once(records.Wrapped(number, own, inside))


_NAMES = (
    *("allreduce", "allreduce_coalesced", "allgather", "_allgather_base", "all_gather_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"),
    *("alltoall", "alltoall_base", "all_to_all_single", "broadcast", "reduce", "gather", "scatter", "send", "recv"),
)
"""Methods of a process group. DDP's reductions in C++ do not call them."""

_FUNCTION, _BATCH_NORM = "torch.autograd.function", "torch.nn.modules._functions"
_MOST_FRAMES = 16
_MOST_EXCHANGED = 64
"""Limit of `Exchanged` records: gradients may come in a different order each time."""


def _in_groups(recording: Recording, leaves: Leaves, reduced: Reduced) -> Seams:
    """Notes `Exchanged`, and keeps reductions outside of backward passes."""
    if not torch.distributed.is_available():
        return
    noted: set[frozenset[int]] = set()
    before: dict[int, frozenset[int]] = {}

    def around(name: str) -> Callable[..., Any]:
        def issue(original: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
            if recording.is_inside("backward"):
                note(group, sys._getframe())
            given = [*tensors([args[0]])] if args else []
            recording.reduced(name, given)
            if args and not recording.is_inside("backward"):
                recording.given.add(given, recording.backwards, _first_site(recording))
                return reduced.run(name, lambda: original(group, *args, **kwargs), args[0], group, returns=False)
            return original(group, *args, **kwargs)

        return issue

    def note(group: Any, frame: FrameType) -> None:
        if len(noted) < _MOST_EXCHANGED and group.size() > 1 and _is_of_a_function(frame):
            first = before.get(recording.backwards, frozenset(leaves.reached))
            before.clear()
            before[recording.backwards] = first
            if leaves.reached and first not in noted:
                noted.add(first)
                recording.note(records.Exchanged(sorted(first)))

    yield from group_calls({name: around(name) for name in _NAMES})


def _is_of_a_function(frame: FrameType | None) -> bool:
    """Whether a node of the graph calls, not a hook, which may inspect or average a gradient. Batch norm statistics do
    not count: they do not show how layers are distributed."""
    names = (one.f_globals.get("__name__") for one in islice(frames(frame), _MOST_FRAMES))
    return bool(next((name for name in names if name in (_FUNCTION, _BATCH_NORM)), None) == _FUNCTION)


def observe(recording: Recording, leaves: Leaves, reduced: Reduced) -> Seams:
    """Notes what DDP and collectives do, and keeps reductions outside of backward passes."""
    yield from _by_ddp(recording)
    yield from _in_groups(recording, leaves, reduced)
    yield from _by_horovod(recording, reduced)
