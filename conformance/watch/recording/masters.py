"""Finds master weights: copies of a model's parameters that an optimizer steps instead, perhaps flat or sharded."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from conformance.trace.state.optimizers import held_by
from conformance.watch import records
from conformance.watch.recording import surroundings
from conformance.watch.recording.holdings import is_plain
from conformance.watch.recording.losses import leaves
from conformance.watch.recording.recording import Recording

_MOST_LOOKS = 8
"""Backward passes after which an optimizer's tensors that none of them reached are not masters."""


class Place(NamedTuple):
    """A parameter's elements in a master: `length` of them from `start` on. pieces: the elements of each rank; ()
    if this rank has all."""

    parameter: torch.Tensor
    master: torch.Tensor
    start: int
    length: int
    pieces: tuple[tuple[int, int], ...] = ()


class Masters:
    """Looks for masters at the first backward passes after an optimizer was made."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._looks = weakref.WeakKeyDictionary[torch.optim.Optimizer, int]()

    def look(self, root: Any) -> None:
        """Before a backward pass from this node: the recording follows the parameters of masters into these."""
        made = [one for one in self._recording.numbers.alive("optimizer") if self._looks.get(one, 0) < _MOST_LOOKS]
        if not made:
            return
        reached = {id(one): one for one in leaves(root)}
        for optimizer in made:
            tensors = held_by(optimizer)
            is_reached = any(id(one) in reached for one in tensors)
            self._looks[optimizer] = _MOST_LOOKS if is_reached else self._looks.get(optimizer, 0) + 1
            if not is_reached and (places := self._places(tensors, reached)):
                self._looks[optimizer] = _MOST_LOOKS
                _follow(self._recording, optimizer, places)

    def _places(self, tensors: Sequence[torch.Tensor], reached: Mapping[int, torch.Tensor]) -> list[Place]:
        """The places in these tensors of parameters without an optimizer; [] if the tensors are no masters of them."""
        roots = [one for root in list(self._recording.roots) for one in root.parameters()]
        every = {id(one): one for one in (*roots, *reached.values())}
        unheld = [one for one in every.values() if one.requires_grad and self._recording.parameters.find(one) is None]
        if not all(map(is_plain, (*tensors, *unheld))) or reached.keys().isdisjoint(map(id, unheld)):
            return []
        return _whole(tensors, unheld) or _of_shards(tensors, unheld)


def check(recording: Recording, optimizer: torch.optim.Optimizer) -> None:
    """Before the first step: copies without gradients are no masters, but the parameters of an old model."""
    tensors, number = held_by(optimizer), recording.optimizer(optimizer)
    is_first = not recording.steps[number] and all(one.grad is None for one in tensors)
    if is_first and recording.parameters.leave(tensors):
        held = [known.number for known, _ in recording.parameters.held(optimizer)]
        recording.note(records.Masters(number, held))


def _follow(recording: Recording, optimizer: torch.optim.Optimizer, places: Sequence[Place]) -> None:
    _, rank, _ = surroundings.of_process()
    for place in places:
        recording.parameters.follow(*place, rank)
    held = [known.number for known, _ in recording.parameters.held(optimizer)]
    recording.note(records.Masters(recording.optimizer(optimizer), held))


def _whole(masters: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> list[Place]:
    """Places if the masters consist of whole parameters, one after the other, and zeros at the end."""
    left = [one for one in parameters if one.numel()]
    firsts = {id(one): one.detach().reshape(-1)[0].item() for one in left}
    found: list[Place] = []
    for master in masters:
        flat, start = master.detach().reshape(-1), 0
        while start < len(flat):
            first = flat[start].item()
            fits = (one for one in left if _rounded(first, one) == firsts[id(one)] and _is_at(one, flat, start))
            if (one := next(fits, None)) is None:
                break
            found.append(Place(one, master, start, one.numel()))
            left = [other for other in left if other is not one]
            start += one.numel()
        if start == 0 or flat[start:].any():
            return []
    return found if any(one.parameter.detach().unique().numel() > 1 for one in found) else []


def _of_shards(masters: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> list[Place]:
    """Places if the master is this rank's shard of all parameters, one after the other, in equal shards."""
    _, rank, world = surroundings.of_process()
    size, total = masters[0].numel(), sum(one.numel() for one in parameters)
    if len(masters) > 1 or world == 1 or not total <= size * world < total + size:
        return []
    flat, found = masters[0].detach().reshape(-1), []
    for one, end in zip(parameters, accumulate(one.numel() for one in parameters), strict=True):
        begin = end - one.numel()
        cuts = [min(max(number * size - begin, 0), one.numel()) for number in range(world + 1)]
        low, high = cuts[rank], cuts[rank + 1]
        start = max(0, begin - rank * size)
        if not torch.equal(flat[start : start + high - low].to(one.dtype), one.detach().reshape(-1)[low:high]):
            return []
        found.append(Place(one, masters[0], start, high - low, tuple(pairwise(cuts))))
    return found


def _is_at(parameter: torch.Tensor, flat: torch.Tensor, start: int) -> bool:
    part = flat[start : start + parameter.numel()]
    return torch.equal(part.to(parameter.dtype), parameter.detach().reshape(-1))


def _rounded(value: float, like: torch.Tensor) -> float:
    rounded: float = torch.tensor(value, dtype=torch.float64).to(like.dtype).item()
    return rounded
