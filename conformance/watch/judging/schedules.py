"""Do schedules step after the optimizers that they are of?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Scheduled

_OFTEN = 3
"""Windows, before a mistake in most of them is one of the script and not of the present epoch."""


@dataclass
class _Of:
    """windows: of an optimizer on a rank. within: in how many of them a schedule stepped between two backward passes;
    first: what the first of them shows. has_end, is_over: whether one of these has a number of steps that it is made
    for, and has passed it."""

    windows: int = 0
    within: int = 0
    first: Finding | None = None
    has_end: bool = False
    is_over: bool = False

    @property
    def is_usual(self) -> bool:
        return self.within > self.windows / 2

    @property
    def is_wrong(self) -> bool:
        return self.is_usual and (self.is_over or not self.has_end)


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
        changed = [(at, one) for at, one in steps if at > min(places) and one.before != one.after]
        for at, schedule in changed:
            if at > max(places):
                finding = _finding(window, schedule)
                self._findings.add(finding)
                window.broken.append(finding.key)
        within = [one for at, one in changed if at < max(places)]
        if within:
            of.within += 1
            of.has_end |= within[0].horizon is not None
            of.is_over |= any(one.horizon is not None and one.count > one.horizon for one in within)
            of.first = of.first or _finding(window, within[0])

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.is_wrong:
                self._findings.add(of.first, count=of.within)
            elif of.first is not None and of.is_usual:
                self._findings.undecided(
                    "a schedule steps within windows, and comes to its end no sooner than the script: it may be made "
                    "for micro-batches"
                )
            elif of.first is not None:
                self._findings.note("a schedule steps within some windows, which go on from one epoch into the next")


def _finding(window: Window, schedule: Scheduled) -> Finding:
    return Finding(
        "watch/schedule-after-step",
        f"{schedule.name} stepped between the backward pass and the step",
        window.index,
        (window.rank,),
        schedule.site,
        _rates(schedule.before, schedule.after),
        window.optimizer,
    )


def _rates(before: list[float | None], after: list[float | None]) -> str | None:
    changed = [(old, new) for old, new in zip(before, after, strict=False) if old != new and None not in (old, new)]
    return f"the step's learning rate is {changed[0][1]:.3g} in place of {changed[0][0]:.3g}" if changed else None
