"""What a window does with Horovod's optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.laws.law import OK, Broken, Outcomes
from conformance.laws.run import Rank, Window, fact
from conformance.laws.sharing import brings_together
from conformance.trace.events import Collective, Event, Optimizer, Synchronize


@dataclass(frozen=True)
class Use:
    """What one window does with one of Horovod's optimizers."""

    window: Window
    noted: Optimizer

    @property
    def optimizer(self) -> int:
        return self.noted.optimizer

    def holds(self, parameters: Sequence[int]) -> bool:
        """Whether the optimizer holds some of these parameters."""
        return not set(parameters).isdisjoint(self.noted.parameters)

    @cached_property
    def synchronizes(self) -> Sequence[Synchronize]:
        return [event for event in self.window.of(Synchronize) if event.optimizer == self.optimizer]

    @cached_property
    def after(self) -> Sequence[Event]:
        """The events after the window's last backward."""
        return self.window.between(Event, after=self.window.backwards[-1]) if self.window.backwards else ()

    @cached_property
    def synchronize(self) -> Synchronize | None:
        """The first synchronize after the window's last backward."""
        last = self.window.backwards[-1].seq if self.window.backwards else None
        return next((event for event in self.synchronizes if last is not None and event.seq > last), None)

    def precedes_synchronize(self, event: Event) -> bool:
        return self.synchronize is None or event.seq < self.synchronize.seq

    @property
    def before_synchronize(self) -> str:
        """``before synchronize (train.py:43)``."""
        return "without it" if self.synchronize is None else f"before {self.synchronize}"

    def slice(self, early: Event) -> Sequence[Event]:
        """The last backward, the event that came too early, and the synchronize that it should have followed."""
        end = [event for event in (self.synchronize,) if event is not None]
        return (*self.window.backwards[-1:], early, *end)


@fact
def uses(window: Window) -> Sequence[Use]:
    """One `Use` for each of Horovod's optimizers; none on a single rank, where there is nothing to average."""
    return [Use(window, noted) for noted in horovod_optimizers(window.rank)] if window.plan.world_size > 1 else ()


@fact
def horovod_optimizers(rank: Rank) -> Sequence[Optimizer]:
    """A rank's optimizers from Horovod; none under Adasum, which averages steps and not gradients."""
    found = [event for event in rank.of(Optimizer) if event.horovod]
    return () if found and any(event.reduce == "adasum" for event in rank.of(Collective)) else found


def stepped_inside(use: Use) -> Outcomes:
    """Checks that a step after an explicit `synchronize()` does not synchronize again."""
    calls = [event for event in use.synchronizes if not event.in_step]
    if not calls:
        return
    for event in use.synchronizes:
        if event.in_step and (before := since_the_step(use, event, calls)):
            yield reduced_again(use, before[-1], event)
            return
    if any(attempt.optimizer == use.optimizer for attempt in use.window.attempts):
        yield OK


def since_the_step(use: Use, event: Event, calls: Sequence[Synchronize]) -> Sequence[Synchronize]:
    """The ``calls`` between the optimizer's last step before ``event`` and ``event``."""
    steps = [step.seq for step in use.window.attempts if step.optimizer == use.optimizer and step.seq < event.seq]
    return [call for call in calls if max(steps, default=-1) < call.seq < event.seq]


def reduced_again(use: Use, first: Synchronize, again: Synchronize) -> Broken:
    after = [event for event in use.window.between(Collective, after=first) if brings_together(event)]
    once = [event for event in after if event.seq < again.seq]
    twice = [event for event in after if event.seq > again.seq]
    ranks = len(twice[0].group) if twice else 0
    if twice and twice[0].reduce == "sum":
        effect: str | None = f"Summed over {ranks} ranks twice, the gradients are {ranks} times too large."
    elif twice:
        total = sum(event.bytes for event in twice)
        effect = f"Averaging equal gradients changes nothing: {total} bytes are sent for nothing."
    else:
        effect = None
    if again.in_step:
        must = "a step after `synchronize()` must be inside `skip_synchronize()`"
        however = f"after {first} the step synchronized by itself ({again.line})"
    else:
        must = "`synchronize()` must be called at most once for each step"
        however = f"after {first} came {again}"
    return Broken(
        again,
        must=must,
        because="each call reduces the gradients over the ranks again",
        however=however,
        shows=(first, *once[:1], again, *twice[:1]),
        effect=effect,
    )
