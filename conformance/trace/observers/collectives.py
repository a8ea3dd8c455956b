"""Collectives: what every one of them is noted with, and those of torch.distributed, seen at c10d's operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.distributed.distributed_c10d import ProcessGroup, ReduceOp, Work, _world, get_process_group_ranks

from conformance.trace.seams.c10d import intercepted
from conformance.trace.seams.patching import replaced
from conformance.trace.values import own_part

if TYPE_CHECKING:
    from conformance.trace.recorder import Recorder

PAYLOADS: dict[str, int | None] = {
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "broadcast_": 0,
    "reduce_": 0,
    "allgather_": 1,
    "_allgather_base_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "gather_": 1,
    "scatter_": 1,
    "reduce_scatter_": 1,
    "_reduce_scatter_base_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "barrier": None,
    "monitored_barrier_": None,
}
"""The operators that are watched, with the position of the argument that holds what a rank puts in."""

GRADIENTS, PARAMETERS = "gradients", "parameters"

_HALF = torch.finfo(torch.bfloat16).eps
"""Copies may be in a type of 16 bits."""


class Collectives:
    """Notes collectives, and knows what those carry whose payload does not show it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._carried: list[str | None] = []
        self._under_way: list[Work] = []

    @contextmanager
    def carrying(self, what: str | None) -> Iterator[None]:
        """Within this, collectives carry `what`: a framework fills buffers of its own with it."""
        self._carried.append(what)
        try:
            yield
        finally:
            self._carried.pop()

    def note(self, op: str, tensors: Sequence[torch.Tensor], via: str, group: list[int], reduce: str | None) -> bool:
        """A collective that is about to be issued over the ranks `group`; `tensors` are what this rank puts in.

        The result is whether the trainer itself has gradients reduced by it.
        """
        recorder = self._recorder
        if recorder.during is None:
            recorder.gradients.look()
        of = self._carried[-1] if self._carried else self.seen_in(tensors, reduces=reduce is not None)
        recorder.note(
            "collective",
            op=op,
            bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            elements=sum(tensor.numel() for tensor in tensors),
            reduce=reduce,
            group=group,
            via=via,
            phase="training" if recorder.forwards else "construction",
            during=recorder.during,
            of=of,
        )
        is_the_trainers = of == GRADIENTS and not self._carried
        if is_the_trainers:
            recorder.gradients.changing()
        return is_the_trainers

    def seen_in(self, tensors: Sequence[torch.Tensor], *, reduces: bool = False) -> str | None:
        """What shares its memory with `tensors`, of the watched model: GRADIENTS or PARAMETERS.

        Copies of gradients count if they are to be reduced, of all or of those of one parameter.
        """
        watched = self._recorder.watched
        parameters = [parameter for parameter in watched.current if parameter is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        # Looking for memory takes long in a model of many parameters that are averaged one by one.
        if watched.owners(tensors):
            return GRADIENTS
        places = {_memory(tensor) for tensor in tensors} - {0}
        if not places.isdisjoint(map(_memory, gradients)):
            return GRADIENTS
        if not places.isdisjoint(map(_memory, parameters)):
            return PARAMETERS
        copied = [gradients, *([gradient] for gradient in gradients)] if reduces and watched.is_readable else []
        return GRADIENTS if any(_is_copy(tensors, of) for of in copied) else None

    def issued(self, work: Work) -> None:
        """The trainer has issued a collective on gradients, which may write to them until it is done."""
        self._under_way.append(work)

    @property
    def are_under_way(self) -> bool:
        """Whether such a collective is not yet done."""
        self._under_way = [work for work in self._under_way if not work.is_completed()]
        return len(self._under_way) > 0


@contextmanager
def observing_c10d(recorder: Recorder) -> Iterator[None]:
    """Have each c10d collective noted before it is issued, DDP's too, which are issued in C++."""
    with intercepted({name: _noting(recorder, name) for name in PAYLOADS}):
        yield


def _noting(recorder: Recorder, name: str) -> Callable[..., Any]:
    position = PAYLOADS[name]
    places = _places(name)

    def around(original: Callable[..., Any], keys: torch._C.DispatchKeySet, *args: Any) -> Any:
        tensors = [] if position is None else list(flat(args[position]))
        reduce = None
        if "reduce_op" in places:
            reduce = ReduceOp.RedOpType(args[places["reduce_op"]].op()).name.lower()
        group = get_process_group_ranks(ProcessGroup.unbox(args[places["process_group"]]))
        collectives = recorder.collectives
        # The frame before this one is the seam's.
        by_reducer = _is_called_by_the_engine(sys._getframe(2)) and all(map(torch.is_floating_point, tensors))
        with collectives.carrying(GRADIENTS) if by_reducer else nullcontext():
            is_the_trainers = collectives.note(name, tensors, "c10d", group, reduce)
        recorder.keep_alive(_world.pg_map)
        result = original(keys, *args)
        if is_the_trainers:
            collectives.issued(Work.unbox(result[-1] if isinstance(result, tuple) else result))
        return result

    return around


@cache
def _places(name: str) -> dict[str, int]:
    """The positions of an operator's arguments."""
    operator = getattr(torch.ops.c10d, name).default
    return {argument.name: place for place, argument in enumerate(operator._schema.arguments)}


def _is_called_by_the_engine(caller: Any) -> bool:
    """Whether no Python stands between the autograd engine and a collective: then DDP's reducer issues it.

    The reducer also finds out which parameters were used, but in integers.
    """
    return caller is None or caller.f_code is _engine_run_backward.__code__


@contextmanager
def observing_broadcasts(recorder: Recorder) -> Iterator[None]:
    """Have it known when torch broadcasts parameters by way of a buffer, as DDP does when it is constructed.

    In its forward DDP broadcasts the model's buffers, such as those of batch norm.
    """

    def around(original: Any, group: Any, tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        collectives = recorder.collectives
        with collectives.carrying(None if recorder.is_doing("forward") else collectives.seen_in(tensors)):
            return original(group, tensors, *args, **kwargs)

    with replaced(torch.distributed, "_broadcast_coalesced", around):
        yield


def flat(tensors: Any) -> Iterator[torch.Tensor]:
    """A tensor, or all tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        for tensor in tensors:
            yield from flat(tensor)


def storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The memory that `tensor` lies in, on this rank."""
    own = own_part(tensor)
    return (own._values() if own.is_sparse else own).untyped_storage()


def _memory(tensor: torch.Tensor) -> int:
    """The address of that memory; 0 if it has none."""
    return storage(tensor).data_ptr()


def _is_copy(tensors: Sequence[torch.Tensor], of: Sequence[torch.Tensor]) -> bool:
    """Whether `tensors` hold the values of `of`, up to rounding and, where these are several, to one factor."""
    copy, original = _floats(tensors), _floats(of)
    if copy.numel() != original.numel() or not original.any():
        return False
    largest = original.abs().argmax()
    factor = copy[largest] / original[largest] if original.numel() > 1 else 1.0
    return torch.allclose(copy, factor * original, rtol=_HALF, atol=0.0)


def _floats(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of all tensors that have a fraction, in one."""
    parts = [own_part(tensor) for tensor in tensors if tensor.is_floating_point()]
    return torch.cat(
        [torch.empty(0, dtype=torch.float64), *(part.to_dense().flatten().double().cpu() for part in parts)]
    )
