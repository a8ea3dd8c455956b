"""Do schedules step after the optimizers that they are of?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Scheduled

_OFTEN = 3
"""Windows, before a mistake in most of them is one of the script and not of the present epoch."""

_LONG = 0.25
"""Of all windows: for so long no schedule is meant to have a rate of 0."""

_AGAIN = 1.5
"""Steps of a schedule, for each that it is made for: it may have gone on a little before or after the training."""

_OF_THE_SCRIPT = "LambdaLR"
"""Its end, if it has one, stands in a function of the script."""


@dataclass
class _Of:
    """windows: of an optimizer on a rank. within: in how many of them a schedule stepped between two backward passes;
    changed: and gave another rate; first: what the first of these shows. has_end, is_past: whether one has a number of
    steps that it is made for, as far as is known, and has passed it. still: the last windows, if their rates are 0, and
    those of others before are not. begun: whether any rate was another one. counts: by name, that of a schedule when it
    first stepped; latest: the last step of one. Neither is told where the training is."""

    windows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    latest: Scheduled | None = None
    within: int = 0
    changed: int = 0
    first: Finding | None = None
    has_end: bool = False
    is_past: bool = False
    still: int = 0
    begun: bool = False

    @property
    def is_of_micro_batches(self) -> bool:
        return self.within > self.windows / 2

    @property
    def is_still(self) -> bool:
        return self.still >= max(_OFTEN, _LONG * self.windows)

    @property
    def is_over(self) -> bool:
        return self.is_past or self.is_still

    @property
    def often(self) -> float:
        """How often the last one steps, for each step of the optimizer."""
        return 0.0 if self.latest is None else (self.latest.count - self.counts[self.latest.name] + 1) / self.windows

    @property
    def is_wrong(self) -> bool:
        return self.is_of_micro_batches and (self.is_over or (self.changed > self.windows / 2 and not self.has_end))


class Schedules:
    """Of the processes that train together.

    One that steps between the last backward pass and the step is too early in any window. One that steps between two
    backward passes may be one of epochs, in a window that goes on from one epoch into the next; no such window is most
    of all windows, unless an epoch is shorter than a window. Or it may be made for as many micro-batches as there are.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen several times, if that ended now."""
        return any(of.is_wrong and of.windows >= _OFTEN for of in self._of.values())

    def judge(self, window: Window) -> None:
        places = window.places
        if window.step is None or window.step.closure or not places:
            return
        of = self._of[window.optimizer, window.rank]
        of.windows += 1
        # One that goes by a loss may step as soon as it is known. One that is told where the training is has the rate
        # of that place, whenever it is told.
        steps = [(at, one) for at, one in window.schedules if not one.is_told]
        for _, schedule in steps:
            of.counts.setdefault(schedule.name, schedule.count)
            of.latest = schedule
        changed = [(at, one) for at, one in steps if at > min(places) and one.before != one.after]
        for at, schedule in changed:
            if at > max(places):
                finding = _finding(window, schedule)
                self._findings.add(finding)
                window.broken.append(finding.key)
        within = [one for at, one in steps if min(places) < at < max(places)]
        if within:
            of.within += 1
            of.has_end |= within[0].horizon is not None or within[0].name == _OF_THE_SCRIPT
            of.is_past |= any(one.horizon is not None and one.count > one.horizon for one in within)
        of.begun |= any(window.step.rates)
        of.still = of.still + 1 if of.latest is not None and of.begun and not any(window.step.rates) else 0
        turns = [one for one in within if one.before != one.after]
        if turns:
            of.changed += 1
            of.first = of.first or _finding(window, turns[0], "stepped between two backward passes of a window")

    def finish(self) -> None:
        for (optimizer, rank), of in self._of.items():
            zeros = f"the learning rate is 0 in the last {of.still} of {of.windows} steps"
            if of.first is not None and of.is_wrong:
                if of.still:
                    of.first.effect = zeros
                self._findings.add(of.first, count=of.within)
            elif of.latest is not None and of.is_still and of.often > _AGAIN:
                says = f"{of.latest.name} steps {of.often:.2g} times for each step of its optimizer"
                law, site = "watch/schedule-after-step", of.latest.site
                self._findings.add(Finding(law, says, 0, (rank,), site, zeros, optimizer))
            elif of.is_still:
                self._findings.undecided(f"{zeros}, so that these change nothing")
            elif of.first is not None and of.is_of_micro_batches:
                self._findings.undecided(
                    "a schedule steps with each micro-batch, and comes to its end no sooner than the script: it may be "
                    "made for micro-batches"
                )
            elif of.first is not None:
                self._findings.note("a schedule steps within some windows, which go on from one epoch into the next")
            last = of.latest
            if last is not None and last.horizon is not None and last.count > _AGAIN * last.horizon:
                self._findings.note(
                    f"{last.name} is made for {last.horizon} steps, and steps {last.count} times: its rate goes up and "
                    "down"
                )


def _finding(
    window: Window, schedule: Scheduled, says: str = "stepped between the backward pass and the step"
) -> Finding:
    return Finding(
        "watch/schedule-after-step",
        f"{schedule.name} {says}",
        window.index,
        (window.rank,),
        schedule.site,
        _rates(schedule.before, schedule.after),
        window.optimizer,
    )


def _rates(before: list[float | None], after: list[float | None]) -> str | None:
    changed = [(old, new) for old, new in zip(before, after, strict=False) if old != new and None not in (old, new)]
    return f"the step's learning rate is {changed[0][1]:.3g} in place of {changed[0][0]:.3g}" if changed else None
