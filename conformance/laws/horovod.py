"""What a run does with optimizers of Horovod's, window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.laws.event import Event
from conformance.laws.labels import placed
from conformance.laws.law import Broken, Check, broken, kept
from conformance.laws.run import RankTrace, Run, Window
from conformance.laws.sharing import brings_together


@dataclass(frozen=True)
class Use:
    """What one window does with one optimizer of Horovod's."""

    window: Window
    noted: Event

    @property
    def optimizer(self) -> int:
        return int(self.noted["optimizer"])

    def holds(self, parameters: Sequence[int]) -> bool:
        """Whether some of these parameters are the optimizer's."""
        return not set(parameters).isdisjoint(self.noted["parameters"])

    @cached_property
    def synchronizes(self) -> tuple[Event, ...]:
        return tuple(event for event in self.window.of("synchronize") if event["optimizer"] == self.optimizer)

    @cached_property
    def after(self) -> tuple[Event, ...]:
        """What followed the window's last backward."""
        return self.window.between(self.window.backwards[-1], None) if self.window.backwards else ()

    @cached_property
    def synchronize(self) -> Event | None:
        """The first one after the window's last backward."""
        return next((event for event in self.after if event in self.synchronizes), None)

    def precedes_synchronize(self, event: Event) -> bool:
        return self.synchronize is None or event.seq < self.synchronize.seq

    @property
    def before_synchronize(self) -> str:
        """``before synchronize (train.py:43)``."""
        return "without it" if self.synchronize is None else f"before {placed(self.synchronize)}"

    def slice(self, early: Event) -> tuple[Event, ...]:
        """The last backward, what came too early, and what it should have waited for."""
        end = [event for event in (self.synchronize,) if event is not None]
        return (*self.window.backwards[-1:], early, *end)


def uses(run: Run) -> Iterator[Use]:
    """Each window with each optimizer of Horovod's, where there is anything to average."""
    if run.plan.world_size > 1:
        for rank in run.ranks:
            optimizers = horovod_optimizers(rank)
            for window in rank.windows:
                yield from (Use(window, noted) for noted in optimizers)


def horovod_optimizers(rank: RankTrace) -> tuple[Event, ...]:
    """Horovod's optimizers of a rank; under Adasum, which averages steps and not gradients, none."""
    if any(event["reduce"] == "adasum" for event in rank.of("collective")):
        return ()
    return tuple(event for event in rank.of("optimizer") if event["horovod"])


def stepped_inside(use: Use) -> Iterator[Check]:
    """That a step after an explicit `synchronize()` does not synchronize once more."""
    calls = [event for event in use.synchronizes if not event["in_step"]]
    if not calls:
        return
    for event in use.synchronizes:
        if event["in_step"] and (before := since_the_step(use, event, calls)):
            yield broken(use.window, reduced_again(use, before[-1], event))
            return
    if any(attempt["optimizer"] == use.optimizer for attempt in use.window.attempts):
        yield kept(use.window)


def since_the_step(use: Use, event: Event, calls: Sequence[Event]) -> list[Event]:
    """Those of ``calls`` that came before ``event`` and after the optimizer's last step before it."""
    steps = [step.seq for step in use.window.attempts if step["optimizer"] == use.optimizer and step.seq < event.seq]
    return [call for call in calls if max(steps, default=-1) < call.seq < event.seq]


def reduced_again(use: Use, first: Event, again: Event) -> Broken:
    after = [event for event in use.window.between(first, None) if brings_together(event)]
    once = [event for event in after if event.seq < again.seq]
    twice = [event for event in after if event.seq > again.seq]
    ranks = len(twice[0]["group"]) if twice else 0
    if twice and twice[0]["reduce"] == "sum":
        effect: str | None = f"Summed over {ranks} ranks twice, the gradients are {ranks} times too large."
    elif twice:
        total = sum(event["bytes"] for event in twice)
        effect = f"The average of equal gradients is what they are: {total} bytes are sent for nothing."
    else:
        effect = None
    if again["in_step"]:
        must = "a step after `synchronize()` must be inside of `skip_synchronize()`"
        however = f"after {placed(first)} the step synchronized by itself ({again.place})"
    else:
        must = "`synchronize()` must be called at most once for a step"
        however = f"after {placed(first)} came {placed(again)}"
    return Broken(
        again,
        must=must,
        because="each time the gradients are reduced over the ranks again",
        however=however,
        shows=(first, *once[:1], again, *twice[:1]),
        effect=effect,
    )
