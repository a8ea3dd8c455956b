"""Decides whether the gradients of a window carry the loss scale. When in doubt, they do not."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeGuard, TypeVar

from conformance.laws.subjects import GlobalWindow, Rank, Run, Window, fact
from conformance.trace import events as trace

#: The rounding error of dividing gradients in half precision, at most.
_ROUNDING = 1e-2
#: A collective of at most so many elements may be the ranks' exchange of overflow flags.
_A_FLAG = 8

T = TypeVar("T", trace.Step, trace.Unscale, trace.ScalerStep)


class Scaling:
    """The loss scaling of one window of one rank.

    is_scaled: whether the model's backward ran on a loss that was scaled by a factor other than 1.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self.run, self.plan = window.run, window.plan
        self.is_scaled = any(end.forwards and is_scale(end.scaled) for end in window.of(trace.BackwardEnd))

    def accumulated(self, until: trace.Event | None) -> Sequence[trace.BackwardEnd]:
        """The ends of the model's backward passes whose gradients have not been cleared before ``until``.

        Clearing the gradients of one of several optimizers counts as clearing all.
        """
        ends: list[trace.BackwardEnd] = []
        for event in self._passes:
            if until is not None and event.seq >= until.seq:
                break
            if isinstance(event, trace.BackwardEnd):
                ends.append(event)
            else:
                ends.clear()
        return ends

    @cached_property
    def _passes(self) -> Sequence[trace.Event]:
        """The ends of backward passes, and events that clear their gradients or show them cleared."""
        ends = [event for event in self.window.of(trace.BackwardEnd) if event.forwards]
        cleared = [event for event in self.window.backwards if event.gradients in ("none", "zero")]
        return sorted((*ends, *cleared, *self.window.of(trace.ZeroGrad)), key=attrgetter("seq"))

    def carried(self, at: trace.Event, parameters: Collection[int]) -> float | None:
        """The loss scale that the gradients of ``parameters`` carry at ``at``.

        None if they carry none, if only some carry it, or if a change makes it unknown.
        """
        ends = self.accumulated(at)
        scales = {end.scaled for end in ends}
        scale = scales.pop() if len(scales) == 1 else None
        if not is_scale(scale):
            return None
        since = [*self.window.between(trace.Event, after=ends[0], before=at)]
        if self.window.rank.shard is not None:
            # A shard of zeros shows no factor, but other ranks may show the change.
            if isinstance(at, trace.Attempt) and not any(self.window.rank.own(at.gradients) or ()):
                return None
            since += [change for one in self.window.counterparts for change in one.of(trace.GradientChange)]
        return None if any(self._may_take_off(event, scale, parameters) for event in since) else scale

    def _may_take_off(self, event: trace.Event, scale: float, parameters: Collection[int]) -> bool:
        """Whether this event may remove the scale from gradients of ``parameters``."""
        if isinstance(event, trace.GradientChange) and touches(event.parameters, parameters):
            # A factor this small may include the division by the scale.
            return not isinstance(event.factor, int | float) or abs(event.factor) * scale <= 1 + _ROUNDING
        if isinstance(event, trace.Collective | trace.Receive):
            # A trainer that sends gradients itself may change them without a trace.
            return event.of == "gradients" and event.during not in ("backward", "synchronize", "step")
        if isinstance(event, trace.ScaleLossExit):
            return not event.delay_unscale
        return isinstance(event, trace.Unscale | trace.Attempt) and touches(self.held(event.optimizer), parameters)

    def is_unscaled(self, at: trace.Event, parameters: Collection[int]) -> bool:
        """Whether a scaler unscaled gradients of ``parameters`` before ``at``."""
        unscales = self.window.between(trace.Unscale, before=at)
        return any(touches(self.held(event.optimizer), parameters) for event in unscales)

    def next(self, after: trace.Event, kind: type[T], parameters: Collection[int]) -> T | None:
        """The first event of this kind after ``after`` whose optimizer has some of ``parameters``."""
        found = self.window.between(kind, after=after)
        return next((event for event in found if touches(self.held(event.optimizer), parameters)), None)

    def held(self, optimizer: int) -> Sequence[int]:
        """The numbers of an optimizer's parameters; () if unknown."""
        return _held(self.window.rank).get(optimizer, ())


@fact
def scaling(window: Window) -> Scaling:
    return Scaling(window)


@fact
def overflowed(window: Window) -> bool:
    """Whether the trace shows infinite or NaN gradients in this window."""
    return (
        bool(window.of(trace.Skip))
        or any(unscale.found_inf for unscale in window.of(trace.Unscale))
        or not all(all_finite(step.gradients or ()) for step in window.of(trace.Step))
    )


@fact
def _held(rank: Rank) -> Mapping[int, Sequence[int]]:
    return {event.optimizer: event.parameters for event in reversed(rank.of(trace.Optimizer))}


def scale_of(event: trace.LossScaled | trace.BackwardEnd) -> trace.Number | None:
    """The factor of a scaled loss; None if it was not scaled."""
    return event.scale if isinstance(event, trace.LossScaled) else event.scaled


def is_scale(value: Any) -> TypeGuard[float]:
    """Whether a recorded loss scale has a visible effect: a finite number other than 0 and 1."""
    return isinstance(value, int | float) and value not in (0, 1)


def all_finite(values: trace.Vector) -> TypeGuard[Sequence[float | None]]:
    """Whether all recorded numbers are finite."""
    return str not in map(type, values)


def divides_by(factor: Any, scale: float) -> bool:
    """Whether multiplying gradients by ``factor`` divides them by exactly ``scale``."""
    return isinstance(factor, int | float) and math.isclose(factor * scale, 1.0, rel_tol=1e-5)


def touches(some: Collection[int], others: Collection[int]) -> bool:
    """Whether two sets of parameters overlap; an empty set stands for unknown parameters and overlaps with all."""
    return not some or not others or not set(some).isdisjoint(others)


@fact
def unscaled_before_sync(window: Window) -> tuple[trace.Event, trace.Event] | None:
    """An unscale, and the averaging of gradients between it and the step; None if there is no such pair.

    After an average that follows the start of the last backward, a later one is of something else, such as a copy for a
    log. Ranks that exchange overflow flags, in `unscale_` or after it, may average afterwards: all of them are finite.
    """
    last = window.backwards[-1] if window.backwards else None
    for unscale in window.of(trace.Unscale):
        earlier = window.between(trace.Contribution, after=last, before=unscale)
        if any(averages_gradients(event) or (_is_flag(event) and event.during == "unscale") for event in earlier):
            continue
        later = window.between(trace.Event, after=unscale)
        step = next((event for event in later if isinstance(event, trace.Attempt | trace.ZeroGrad)), None)
        between = window.between(trace.Contribution, after=unscale, before=step)
        # amp/unscale-after-last-backward reports an average that is part of a backward.
        late = [event for event in between if averages_gradients(event) and event.during != "backward"]
        if late and not any(map(_is_flag, between)):
            return unscale, late[0]
    return None


def averages_gradients(event: trace.Contribution) -> bool:
    """Whether an event averages gradients through torch.distributed, or sends them to be averaged."""
    reduces = not isinstance(event, trace.Collective) or "reduce" in event.op
    return reduces and event.of == "gradients" and event.via == "c10d"


def _is_flag(event: trace.Event) -> bool:
    """Whether this exchange may have reported an overflow to all ranks."""
    return isinstance(event, trace.Exchange) and event.of is None and 0 < event.elements <= _A_FLAG


def decisions(windows: Sequence[Window]) -> list[list[trace.Step | None]]:
    """For each optimizer, the step of each rank, or None. In torch one optimizer may skip while others step."""
    optimizers = sorted({step.optimizer for window in windows for step in window.attempts})
    return [
        [next((step for step in window.of(trace.Step) if step.optimizer == number), None) for window in windows]
        for number in optimizers
    ]


@fact
def disagree(here: GlobalWindow) -> bool:
    """Whether one rank stepped in its window and another did not."""
    stepped = [{step.optimizer for step in window.of(trace.Step)} for window in here.stepping]
    return any(one != stepped[0] for one in stepped)


@fact
def first_disagreement(run: Run) -> float:
    """The first window in which one rank stepped and another did not; infinity if there is none."""
    return min((number for number, here in run.together.items() if disagree(here)), default=math.inf)
