"""The calls of Horovod's optimizers in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

from conformance.laws.law import OK, Broken, Outcomes
from conformance.laws.sharing import brings_together
from conformance.laws.subjects import E, Rank, Window, fact
from conformance.trace.events import Attempt, Collective, Event, Optimizer, Synchronize


@dataclass(frozen=True)
class Use:
    """The calls of one of Horovod's optimizers in one window."""

    window: Window
    noted: Optimizer

    def has(self, parameters: Sequence[int]) -> bool:
        """Whether the optimizer has some of these parameters."""
        return not set(parameters).isdisjoint(self.noted.parameters)

    def is_of(self, event: Event, kinds: type[E] | tuple[type[E], ...]) -> TypeGuard[E]:
        """Whether an event is of these kinds and of this optimizer."""
        return isinstance(event, kinds) and getattr(event, "optimizer", None) == self.noted.optimizer

    @cached_property
    def synchronizes(self) -> Sequence[Synchronize]:
        return [event for event in self.window.of(Synchronize) if self.is_of(event, Synchronize)]

    @cached_property
    def calls(self) -> Sequence[Synchronize]:
        """The synchronizes that the trainer calls itself; without one, the step synchronizes."""
        return [event for event in self.synchronizes if not event.in_step]

    @cached_property
    def after(self) -> Sequence[Event]:
        """The events after the window's last backward."""
        return self.window.between(Event, after=self.window.backwards[-1]) if self.window.backwards else ()

    @cached_property
    def synchronize(self) -> Synchronize | None:
        """The first synchronize after the window's last backward."""
        return next((event for event in self.after if self.is_of(event, Synchronize)), None)

    def early(self, events: Sequence[E]) -> E | None:
        """The first of these that came before the synchronize."""
        return next((one for one in events if self.synchronize is None or one.seq < self.synchronize.seq), None)

    def came_early(self, event: Event, expected: str, why: str, effect: str | None) -> Broken:
        """The violation of an event that came before the synchronize, or without one."""
        ends = [] if self.synchronize is None else [self.synchronize]
        observed = f"{event} came " + (f"before {ends[0]}" if ends else "without a `synchronize()`")
        return Broken(event, expected, observed, why, (*self.window.backwards[-1:], event, *ends), effect)

    def synchronized_again(self, among: Sequence[Synchronize]) -> Broken | None:
        """The first of these that follows a call for the same step, and so reduces the gradients again."""
        for again in among:
            steps = [one.seq for one in self.window.attempts if self.is_of(one, Attempt) and one.seq < again.seq]
            before = [call for call in self.calls if max(steps, default=-1) < call.seq < again.seq]
            if before:
                return self._reduced_again(before[-1], again)
        return None

    def _reduced_again(self, first: Synchronize, again: Synchronize) -> Broken:
        after = [event for event in self.window.between(Collective, after=first) if brings_together(event)]
        once = [event for event in after if event.seq < again.seq]
        twice = [event for event in after if event.seq > again.seq]
        effect: str | None = None
        if twice and twice[0].reduce == "sum":
            ranks = len(twice[0].group)
            effect = f"The sum over {ranks} ranks is taken twice: gradients are {ranks}x too large."
        elif twice:
            total = sum(event.bytes for event in twice)
            effect = f"The second average changes no number, but sends {total} bytes."
        return Broken(
            again,
            expected="a step inside `skip_synchronize()` after `synchronize()`"
            if again.in_step
            else "at most one `synchronize()` per step",
            observed=f"{first} was followed by "
            + (f"a step that synchronized again ({again.line})" if again.in_step else str(again)),
            why="each synchronize reduces the gradients over the ranks again",
            shows=(first, *once[:1], again, *twice[:1]),
            effect=effect,
        )


@fact
def uses(window: Window) -> Sequence[Use]:
    """One `Use` for each of Horovod's optimizers; none on a single rank, which has nothing to average."""
    return [Use(window, noted) for noted in horovod_optimizers(window.rank)] if window.plan.world_size > 1 else ()


@fact
def horovod_optimizers(rank: Rank) -> Sequence[Optimizer]:
    """A rank's optimizers from Horovod; none under Adasum, which averages steps and not gradients."""
    found = [event for event in rank.of(Optimizer) if event.horovod]
    return () if found and any(event.reduce == "adasum" for event in rank.of(Collective)) else found


def stepped_inside(window: Window) -> Outcomes:
    """Checks that a step after an explicit `synchronize()` does not synchronize again."""
    for use in uses(window):
        broken = use.synchronized_again([event for event in use.synchronizes if event.in_step])
        if use.calls and broken is not None:
            yield broken
        elif use.calls and any(use.is_of(attempt, Attempt) for attempt in window.attempts):
            yield OK
