"""What the gradients of a window carry of the loss scale, as far as its trace tells. When in doubt: nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from conformance.laws.event import Event
from conformance.laws.run import Run, Window

#: Rounding that a division of gradients in half precision may bring.
_ROUNDING = 1e-2
#: Up to so many elements a collective can be the ranks' exchange of what overflowed.
_A_FLAG = 8


@dataclass(frozen=True)
class Scaling:
    """The loss scaling of one window of one rank."""

    run: Run
    window: Window

    def accumulated(self, until: Event | None) -> tuple[Event, ...]:
        """The ends of the backward passes of the model whose gradients are still there at ``until``.

        Whoever clears the gradients of one of several optimizers counts as clearing all.
        """
        ends: list[Event] = []
        for event in self.window.between(None, until):
            if event.kind == "zero_grad" or (event.kind == "backward_begin" and event["gradients"] in ("none", "zero")):
                ends.clear()
            elif event.kind == "backward_end" and event["forwards"]:
                ends.append(event)
        return tuple(ends)

    def carried(self, at: Event, parameters: Collection[int]) -> float | None:
        """The loss scale that the gradients of ``parameters`` carry at ``at``.

        None where they carry none, where some of them do and others do not, or where they were changed so that nobody
        can tell.
        """
        ends = self.accumulated(at)
        scales = {end["scaled"] for end in ends}
        scale = scales.pop() if len(scales) == 1 else None
        if not is_scale(scale):
            return None
        since = self.window.between(ends[0], at)
        return None if any(self._may_take_off(event, scale, parameters) for event in since) else scale

    def _may_take_off(self, event: Event, scale: float, parameters: Collection[int]) -> bool:
        """Whether gradients of ``parameters`` may have lost their scale by this event."""
        if event.kind == "gradient_change" and touches(event["parameters"], parameters):
            # A smaller factor may be of this scale, whatever else it is of.
            return event["factor"] is None or abs(event["factor"]) * scale <= 1 + _ROUNDING
        if event.kind in ("collective", "receive"):
            # What becomes of gradients while they are on their way by hand is not told apart in a trace.
            return event["of"] == "gradients" and event["during"] not in ("backward", "synchronize", "step")
        if event.kind == "scale_loss_exit":
            return not event["delay_unscale"]
        return event.kind in ("unscale", "step", "skip") and touches(self.held(event["optimizer"]), parameters)

    def is_unscaled(self, at: Event, parameters: Collection[int]) -> bool:
        """Whether gradients of ``parameters`` were unscaled by a scaler before ``at``."""
        unscales = [event for event in self.window.between(None, at) if event.kind == "unscale"]
        return any(touches(self.held(event["optimizer"]), parameters) for event in unscales)

    def next(self, after: Event, kinds: Collection[str], parameters: Collection[int]) -> Event | None:
        """The first event after ``after`` of one of these kinds whose optimizer holds some of ``parameters``."""
        for event in self.window.between(after, None):
            if event.kind in kinds and touches(self.held(event["optimizer"]), parameters):
                return event
        return None

    def held(self, optimizer: int | None) -> tuple[int, ...]:
        """The numbers of the parameters that an optimizer holds; () if there is no telling."""
        for event in self.run.ranks[self.window.rank].of("optimizer"):
            if event["optimizer"] == optimizer:
                return tuple(event["parameters"])
        return ()

    @property
    def overflowed(self) -> bool:
        """Whether gradients of this window were seen that are not finite."""
        return any(
            event.kind == "skip"
            or (event.kind == "unscale" and bool(event["found_inf"]))
            or (event.kind == "step" and not finite(event["gradients"]))
            for event in self.window.events
        )


def scaled_windows(run: Run) -> Iterator[Scaling]:
    """The windows in which the model's backward ran on a loss that was scaled, by other than 1."""
    for window in run.windows:
        if is_scaled(window):
            yield Scaling(run, window)


def is_scaled(window: Window) -> bool:
    """Whether the model's backward ran on a loss that was scaled, by other than 1."""
    return any(end["forwards"] and is_scale(end["scaled"]) for end in window.of("backward_end"))


def is_scale(value: Any) -> TypeGuard[float]:
    """Whether a recorded loss scale is one that can be seen: a finite number, and not 1."""
    return isinstance(value, int | float) and value not in (0, 1)


def finite(values: Any) -> bool:
    """Whether a list of recorded numbers has none that is infinite or not a number. A list that is not there has."""
    return not any(isinstance(value, str) for value in values or ())


def divides_by(factor: float | None, scale: float) -> bool:
    """Whether gradients that were multiplied by ``factor`` were divided by ``scale`` and nothing else."""
    return factor is not None and math.isclose(factor * scale, 1.0, rel_tol=1e-5)


def touches(some: Collection[int], others: Collection[int]) -> bool:
    """Whether two sets of parameters have one in common; an empty one may be any."""
    return not some or not others or not set(some).isdisjoint(others)


def norm(values: Collection[Any]) -> float:
    """The Euclidean norm of recorded numbers, all finite; missing ones count as 0."""
    return math.hypot(*(value for value in values if value is not None))


def largest(values: Collection[Any]) -> float:
    """The largest magnitude of recorded numbers, all finite; missing ones count as 0."""
    return max((abs(value) for value in values if value is not None), default=0.0)


def unscaled_before_sync(window: Window) -> tuple[Event, Event] | None:
    """An unscale with the averaging of gradients that came after it and before the step."""
    for unscale in window.of("unscale"):
        later = window.between(unscale, None)
        for event in later:
            if event.kind in ("step", "skip", "zero_grad") or _is_flag(event):
                break
            # In a backward it is that which comes too late: amp/unscale-after-last-backward.
            if averages(event) and event["during"] != "backward":
                return unscale, event
    return None


def averages(event: Event) -> bool:
    """Whether gradients are averaged by torch, or sent to be. By Horovod it is hvd/synchronize-before-unscale."""
    reduces = event.kind == "send" or (event.kind == "collective" and "reduce" in event["op"])
    return bool(reduces and event["of"] == "gradients" and event["via"] == "c10d")


def _is_flag(event: Event) -> bool:
    """Whether the ranks may here have told each other that one of them has found an overflow."""
    exchanges = event.kind in ("collective", "send", "receive")
    return exchanges and event["of"] is None and 0 < event["elements"] <= _A_FLAG


def decisions(windows: Sequence[Window]) -> list[list[Event | None]]:
    """For each optimizer, what step each rank took. Each decides for itself: torch says that one may skip alone."""
    optimizers = sorted({step["optimizer"] for window in windows for step in window.attempts})
    return [
        [next((step for step in window.of("step") if step["optimizer"] == number), None) for window in windows]
        for number in optimizers
    ]


def disagree(windows: Sequence[Window]) -> bool:
    """Whether one rank stepped in its window and another did not."""
    return any(any(steps) and not all(steps) for steps in decisions(windows))
