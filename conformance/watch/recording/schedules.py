"""Steps of learning-rate schedulers."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from conformance.trace.seams.patching import Seams, replaced, with_subclasses
from conformance.watch import records
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.steps import rates

_ENDS = ("total_steps", "T_max")
"""Of schedules that go through their shape once, such as OneCycleLR, the number of steps in it."""


def observe(recording: Recording) -> Seams:
    """Notes `Scheduled` for each outermost step but the initial one, which the constructor makes."""

    def step(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if "schedule" in recording.inside:
            return original(scheduler, *args, **kwargs)
        before = rates(scheduler.optimizer)
        recording.inside.append("schedule")
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            recording.inside.remove("schedule")
        recording.note(
            records.Scheduled(
                recording.optimizer(scheduler.optimizer),
                type(scheduler).__name__,
                before,
                rates(scheduler.optimizer),
                recording.site(),
                getattr(scheduler, "last_epoch", 0),
                next((int(end) for name in _ENDS if (end := getattr(scheduler, name, None)) is not None), None),
                any(one is not None for one in (*args, *kwargs.values())),
                rates(scheduler.optimizer, "initial_lr"),
            )
        )
        return result

    def initial(original: Any, scheduler: Any) -> Any:
        recording.inside.append("schedule")
        try:
            return original(scheduler)
        finally:
            recording.inside.remove("schedule")

    yield replaced(LRScheduler, "_initial_step", initial)
    for owner in {*with_subclasses(LRScheduler), ReduceLROnPlateau}:
        if "step" in vars(owner):
            yield replaced(owner, "step", step)
