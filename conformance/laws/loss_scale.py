"""What the gradients of a window carry of the loss scale, as far as its trace shows. When in doubt: nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeGuard, TypeVar

from conformance.laws.run import GlobalWindow, Rank, Run, Window, fact
from conformance.trace.events import (
    Attempt,
    BackwardBegin,
    BackwardEnd,
    Collective,
    Contribution,
    Event,
    Exchange,
    GradientChange,
    Optimizer,
    Receive,
    ScaleLossExit,
    ScalerStep,
    Skip,
    Step,
    Unscale,
    Vector,
    ZeroGrad,
)

#: Rounding that a division of gradients in half precision may bring.
_ROUNDING = 1e-2
#: Up to so many elements a collective can be the ranks' exchange of what overflowed.
_A_FLAG = 8

T = TypeVar("T", Step, Unscale, ScalerStep)


class Scaling:
    """The loss scaling of one window of one rank."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.run, self.plan = window.run, window.plan

    def accumulated(self, until: Event | None) -> Sequence[BackwardEnd]:
        """The ends of the backward passes of the model whose gradients are still there at ``until``.

        Whoever clears the gradients of one of several optimizers counts as clearing all.
        """
        ends: list[BackwardEnd] = []
        for event in self._passes:
            if until is not None and event.seq >= until.seq:
                break
            if isinstance(event, BackwardEnd):
                ends.append(event)
            else:
                ends.clear()
        return ends

    @cached_property
    def _passes(self) -> Sequence[Event]:
        """The ends of backward passes, and what clears their gradients."""
        return [
            event
            for event in self.window.events
            if (isinstance(event, BackwardEnd) and event.forwards)
            or isinstance(event, ZeroGrad)
            or (isinstance(event, BackwardBegin) and event.gradients in ("none", "zero"))
        ]

    def carried(self, at: Event, parameters: Collection[int]) -> float | None:
        """The loss scale that the gradients of ``parameters`` carry at ``at``.

        None where they carry none, where some of them do and others do not, or where they were changed so that nobody
        can tell.
        """
        ends = self.accumulated(at)
        scales = {end.scaled for end in ends}
        scale = scales.pop() if len(scales) == 1 else None
        if not is_scale(scale):
            return None
        since = self.window.between(ends[0], at)
        return None if any(self._may_take_off(event, scale, parameters) for event in since) else scale

    def _may_take_off(self, event: Event, scale: float, parameters: Collection[int]) -> bool:
        """Whether gradients of ``parameters`` may have lost their scale by this event."""
        if isinstance(event, GradientChange) and touches(event.parameters, parameters):
            # A smaller factor may be of this scale, whatever else it is of.
            return not isinstance(event.factor, int | float) or abs(event.factor) * scale <= 1 + _ROUNDING
        if isinstance(event, Collective | Receive):
            # What becomes of gradients while they are on their way by hand is not told apart in a trace.
            return event.of == "gradients" and event.during not in ("backward", "synchronize", "step")
        if isinstance(event, ScaleLossExit):
            return not event.delay_unscale
        return isinstance(event, Unscale | Attempt) and touches(self.held(event.optimizer), parameters)

    def is_unscaled(self, at: Event, parameters: Collection[int]) -> bool:
        """Whether gradients of ``parameters`` were unscaled by a scaler before ``at``."""
        unscales = self.window.of(Unscale, before=at)
        return any(touches(self.held(event.optimizer), parameters) for event in unscales)

    def next(self, after: Event, kind: type[T], parameters: Collection[int]) -> T | None:
        """The first event of this kind after ``after`` whose optimizer holds some of ``parameters``."""
        found = self.window.of(kind, after=after)
        return next((event for event in found if touches(self.held(event.optimizer), parameters)), None)

    def held(self, optimizer: int) -> Sequence[int]:
        """The numbers of the parameters that an optimizer holds; () if nobody can tell."""
        return _held(self.window.rank).get(optimizer, ())

    @cached_property
    def overflowed(self) -> bool:
        """Whether gradients of this window were seen that are not finite."""
        window = self.window
        return (
            bool(window.of(Skip))
            or any(unscale.found_inf for unscale in window.of(Unscale))
            or any(not all_finite(step.gradients) for step in window.of(Step))
        )

    @cached_property
    def is_scaled(self) -> bool:
        """Whether the model's backward ran on a loss that was scaled, by other than 1."""
        return any(end.forwards and is_scale(end.scaled) for end in self.window.of(BackwardEnd))


@fact
def scaling(window: Window) -> Scaling:
    return Scaling(window)


@fact
def _held(rank: Rank) -> Mapping[int, Sequence[int]]:
    return {event.optimizer: event.parameters for event in reversed(rank.of(Optimizer))}


def is_scale(value: Any) -> TypeGuard[float]:
    """Whether a recorded loss scale is one that can be seen: a finite number, and not 1."""
    return isinstance(value, int | float) and value not in (0, 1)


def all_finite(values: Vector | None) -> bool:
    """Whether a list of recorded numbers has none that is infinite or not a number. A list that is not there has."""
    return values is None or not any(isinstance(value, str) for value in values)


def divides_by(factor: Any, scale: float) -> bool:
    """Whether gradients that were multiplied by ``factor`` were divided by ``scale`` and nothing else."""
    return isinstance(factor, int | float) and math.isclose(factor * scale, 1.0, rel_tol=1e-5)


def touches(some: Collection[int], others: Collection[int]) -> bool:
    """Whether two sets of parameters have one in common; an empty one may be any."""
    return not some or not others or not set(some).isdisjoint(others)


@fact
def unscaled_before_sync(window: Window) -> tuple[Event, Event] | None:
    """An unscale with the averaging of gradients that came after it and before the step."""
    for unscale in window.of(Unscale):
        for event in window.between(unscale, None):
            if isinstance(event, Attempt | ZeroGrad) or _is_flag(event):
                break
            # In a backward it is that which comes too late: amp/unscale-after-last-backward.
            if isinstance(event, Contribution) and averages_gradients(event) and event.during != "backward":
                return unscale, event
    return None


def averages_gradients(event: Contribution) -> bool:
    """Whether gradients are averaged by torch, or sent to be."""
    reduces = not isinstance(event, Collective) or "reduce" in event.op
    return reduces and event.of == "gradients" and event.via == "c10d"


def _is_flag(event: Event) -> bool:
    """Whether the ranks may here have told each other that one of them has found an overflow."""
    return isinstance(event, Exchange) and event.of is None and 0 < event.elements <= _A_FLAG


def decisions(windows: Sequence[Window]) -> list[list[Step | None]]:
    """For each optimizer, what step each rank took. Each decides for itself: torch says that one may skip alone."""
    optimizers = sorted({step.optimizer for window in windows for step in window.attempts})
    return [
        [next((step for step in window.of(Step) if step.optimizer == number), None) for window in windows]
        for number in optimizers
    ]


@fact
def disagree(here: GlobalWindow) -> bool:
    """Whether one rank stepped in its window and another did not."""
    return any(any(steps) and not all(steps) for steps in decisions(here.stepping))


@fact
def first_disagreement(run: Run) -> float:
    """The first window in which one rank stepped and another did not; infinity if there is none."""
    return min((number for number, here in run.together.items() if disagree(here)), default=math.inf)
