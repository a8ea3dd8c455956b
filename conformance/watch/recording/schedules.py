"""Steps of learning-rate schedulers."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from conformance.trace.seams.guarding import harmless
from conformance.trace.seams.patching import Seams
from conformance.trace.seams.probes import schedules
from conformance.trace.state.optimizers import unwrapped
from conformance.watch import records
from conformance.watch.recording.recording import Recording
from conformance.watch.recording.steps import rates

_ENDS = ("total_steps", "T_max")
"""Of schedules that go through their shape once, such as OneCycleLR, the number of steps in it."""


def observe(recording: Recording) -> Seams:
    """Notes `Scheduled` for each outermost step but the initial one, which the constructor makes, and `Schedule` for
    each optimizer that has one and steps. Of a run that is watched in part nobody knows whether its schedules step."""
    made: WeakKeyDictionary[Any, tuple[str, records.Site]] = WeakKeyDictionary()

    def step(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        before = rates(scheduler.optimizer)
        result = original(scheduler, *args, **kwargs)
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
        with recording.inside("schedule"):
            result = original(scheduler)
        if recording.settings.steps is None:
            made.setdefault(unwrapped(scheduler.optimizer), (type(scheduler).__name__, recording.site()))
        return result

    def note_made() -> None:
        for optimizer, (name, site) in [*made.items()]:
            number = recording.numbers.known("optimizer", optimizer)
            if number is not None and recording.steps.get(number):
                recording.note(records.Schedule(number, name, site))
                del made[optimizer]

    recording.before_writing.append(harmless(note_made))
    yield from schedules(recording, step, initial)
