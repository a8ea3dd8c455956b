"""Finds master weights: copies of a model's parameters that an optimizer steps instead, perhaps flat or sharded."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from conformance.trace.state.optimizer_state import held_by
from conformance.watch import records
from conformance.watch.recording import own_rank
from conformance.watch.recording.holdings import is_plain
from conformance.watch.recording.losses import leaves
from conformance.watch.recording.parameters import Known
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.weights import beginning

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
        self._behind = weakref.WeakKeyDictionary[torch.optim.Optimizer, _Behind]()

    def look(self, root: Any) -> None:
        """Before a backward pass from this node: the recording follows the parameters of masters into these."""
        for followed, behind in [*self._behind.items()]:
            behind.look(followed, root)
        alive, steps = self._recording.numbers.alive("optimizer"), self._recording.steps
        begin = [one for one in alive if not steps[self._recording.optimizer(one)]]
        made = [one for one in begin if self._looks.get(one, 0) < _MOST_LOOKS]
        if not made:
            return
        reached = {id(one): one for one in leaves(root)}
        for optimizer in made:
            groups = [group["params"] for group in optimizer.param_groups]
            tensors = held_by(optimizer)
            self._looks[optimizer] = self._looks.get(optimizer, 0) + 1
            if any(id(one) in reached for one in tensors):
                # The passes before, if any, were those of a copy of the model.
                _leave(self._recording, optimizer, tensors)
                self._looks[optimizer] = _MOST_LOOKS
            elif not any(map(self._recording.parameters.is_followed, tensors)):
                _follow(self._recording, optimizer, self._places(groups, reached))
                if any(map(self._recording.parameters.is_followed, tensors)):
                    self._behind[optimizer] = _Behind(self._recording, optimizer)

    def _places(self, groups: Sequence[Sequence[torch.Tensor]], reached: Mapping[int, torch.Tensor]) -> list[Place]:
        """The places in these tensors of parameters without an optimizer; [] if the tensors are no masters of them."""
        find = self._recording.parameters.find
        roots = {id(one): one for root in list(self._recording.roots) for one in root.parameters()}
        others = {key: one for key, one in reached.items() if key not in roots and isinstance(one, torch.nn.Parameter)}
        ordered, unordered = (
            [one for one in of.values() if one.requires_grad and find(one) is None] for of in (roots, others)
        )
        unheld = [*ordered, *unordered]
        tensors = [one for group in groups for one in group]
        are_plain = all(is_plain(one) and one.is_floating_point() for one in (*tensors, *unheld))
        if not (tensors and are_plain) or reached.keys().isdisjoint(map(id, unheld)):
            return []
        return _whole(groups, unheld, len(ordered)) or _of_shards(tensors, unheld)


class _Behind:
    """Detects parameters that never get the values of their masters.

    first: by parameter that never changed, its version and first elements when it was followed: writes through `data`
    change no version, and others may write equal values. steps: at the last look. is_found: whether that found any.
    """

    def __init__(self, recording: Recording, optimizer: torch.optim.Optimizer) -> None:
        self._recording = recording
        followed = self._followed(optimizer)
        self._first = {known.number: (one._version, beginning(one).clone()) for known, one, _ in followed}
        self._steps, self._is_found = 0, False

    def _followed(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[Known, torch.Tensor, torch.Tensor]]:
        """Parameters that are whole in a master, with the first elements of both."""
        for known, master in self._recording.parameters.held(optimizer):
            parameter = known.reference() if known.is_copied and not known.is_flat else None
            if parameter is not None:
                yield known, parameter, master.data.reshape(parameter.shape)

    def _is_unwritten(self, known: Known, parameter: torch.Tensor) -> bool:
        return known.number in self._first and self._first[known.number][0] == parameter._version

    def look(self, optimizer: torch.optim.Optimizer, root: Any) -> None:
        """At the first pass of a window, notes `Behind` if a master is farther from its parameter than any rounding."""
        number = self._recording.optimizer(optimizer)
        steps = self._recording.steps[number]
        if steps == self._steps or not (self._is_found or not steps & (steps - 1)):
            return
        self._steps = steps
        held = [one for one in self._followed(optimizer) if self._is_unwritten(*one[:2])]
        states = [_state(self._first[of.number][1], beginning(one), beginning(master)) for of, one, master in held]
        same = [(one, far) for one, (new, far) in zip(held, _read(states), strict=True) if not new]
        self._first = {known.number: self._first[known.number] for (known, *_), _ in same}
        reached = {id(one) for one in leaves(root)} if any(far for _, far in same) else set()
        behind = [known.number for (known, one, _), far in same if far and id(one) in reached]
        self._is_found = bool(behind)
        if behind:
            self._recording.note(records.Behind(number, behind, steps))


def _state(first: torch.Tensor, now: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
    """Whether a parameter has changed, and whether its master is farther from it than two roundings."""
    distance = (master.to(now.device, torch.float32) - now.float()).abs()
    is_far = (distance > 2 * torch.finfo(now.dtype).eps * now.float().abs() + torch.finfo(now.dtype).tiny).any()
    return torch.stack([(first != now).any(), is_far])


def _read(states: Sequence[torch.Tensor]) -> list[list[bool]]:
    return torch.stack([*states]).tolist() if states else []


def _leave(recording: Recording, optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor]) -> None:
    if recording.parameters.leave(tensors):
        held = [known.number for known, _ in recording.parameters.held(optimizer)]
        recording.note(records.Masters(recording.optimizer(optimizer), held))


def check(recording: Recording, optimizer: torch.optim.Optimizer) -> None:
    """Before the first step: copies without gradients are no masters, but the parameters of an old model."""
    tensors = held_by(optimizer)
    if not recording.steps[recording.optimizer(optimizer)] and all(one.grad is None for one in tensors):
        _leave(recording, optimizer, tensors)


def _follow(recording: Recording, optimizer: torch.optim.Optimizer, places: Sequence[Place]) -> None:
    if not places:
        return
    _, rank, _ = own_rank.of_process()
    for place in places:
        recording.parameters.follow(*place, rank)
    held = [known.number for known, _ in recording.parameters.held(optimizer)]
    recording.note(records.Masters(recording.optimizer(optimizer), held))


def _whole(groups: Sequence[Sequence[torch.Tensor]], parameters: Sequence[torch.Tensor], ordered: int) -> list[Place]:
    """Places if the masters consist of whole parameters, one after the other, and zeros at the end. ordered: how many
    of the parameters have the order of their model."""
    left = [(number, one) for number, one in enumerate(parameters) if one.numel()]
    firsts = [one.detach().reshape(-1)[0].item() if one.numel() else 0.0 for one in parameters]
    found: list[Place] = []
    orders: list[list[int]] = []
    for group in groups:
        orders.append([])
        for master in group:
            flat, start = master.detach().reshape(-1), 0
            while start < len(flat):
                first = flat[start].item()
                fits = (
                    (number, one)
                    for number, one in left
                    if _rounded(first, one) == firsts[number] and _is_at(one, flat, start)
                )
                if (fit := next(fits, None)) is None:
                    break
                left.remove(fit)
                orders[-1].append(fit[0])
                found.append(Place(fit[1], master, start, fit[1].numel()))
                start += fit[1].numel()
            if start == 0 or flat[start:].any():
                return []
    has_values = any(one.parameter.detach().unique().numel() > 1 for one in found)
    return found if has_values and _are_clear(parameters, orders, ordered) else []


def _are_clear(parameters: Sequence[torch.Tensor], orders: Sequence[Sequence[int]], ordered: int) -> bool:
    """Whether it is clear where each parameter is: those with equal values, such as the weights of norms, are in one
    group, which has the order of the model. orders: the numbers of the parameters in each group."""
    alike: dict[bytes, set[int]] = defaultdict(set)
    for number, one in enumerate(parameters):
        alike[one.detach().float().cpu().numpy().tobytes()].add(number)
    in_order = [{*order} for order in orders if [*order] == sorted(order)]
    return all(
        len(numbers) == 1 or (max(numbers) < ordered and any(numbers <= order for order in in_order))
        for numbers in alike.values()
    )


def _of_shards(masters: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> list[Place]:
    """Places if the master is this rank's shard of all parameters, one after the other, in equal shards."""
    _, rank, world = own_rank.of_process()
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
