"""Does a loss scaler of the script's own divide gradients by the scale that their loss was multiplied with?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isclose

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.multiplied import scale_of
from conformance.watch.judging.windows import Window

_NEAR = 0.02
_SEVERAL = 3
"""Times at which the scale grew, and at which it stayed."""


@dataclass
class _Step:
    """scale: what the losses were multiplied with last. off: the factor of the step, times that."""

    window: Window
    scale: float
    off: float


@dataclass
class _Scale:
    """Of an optimizer on a rank, with gradients that are averaged, or summed. stayed: how many steps before one of the
    same scale divide by it. grew: how many before one of a larger scale divide by that. others: how many do something
    else. first: of those that grew."""

    stayed: int = 0
    grew: int = 0
    others: int = 0
    first: Finding | None = None

    def add(self, step: _Step, following: float, right: float) -> None:
        """following: the scale of the step after it. right: the factor, times the scale, that is right."""
        if not isclose(step.off * following, right * step.scale, rel_tol=_NEAR):
            self.others += 1
        elif following == step.scale:
            self.stayed += 1
        else:
            self.grew += 1
            self.first = self.first or _finding(step, following)

    @property
    def is_of_the_next(self) -> bool:
        return min(self.stayed, self.grew) >= _SEVERAL and not self.others


class OwnScale:
    """Of the processes that train together.

    Whatever number a script multiplies its losses with, and whatever it divides gradients by: a factor that is right
    in each step but those before the number grows, and wrong in all of these by just the ratio in which it does, is
    that of a scale that was updated too early. A step does not know how the next loss will be multiplied, unless the
    script has updated its scale by then.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._last: dict[tuple[int, int], _Step | None] = {}
        self._of: dict[tuple[int, int, float], _Scale] = defaultdict(_Scale)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.is_of_the_next for of in self._of.values())

    def judge(self, together: Together) -> None:
        """A step whose factors are known."""
        for window in together.here:
            optimizer, rank = window.optimizer, window.rank
            step, before = _step(window, together), self._last.get((optimizer, rank))
            self._last[optimizer, rank] = step
            if step is None or before is None or window.clock - len(window.backwards) != before.window.clock:
                continue
            if step.scale >= before.scale:
                for right in {1.0, float(together.ranks)}:
                    self._of[optimizer, rank, right].add(before, step.scale, right)

    def finish(self) -> None:
        for of in self._of.values():
            if of.is_of_the_next and of.first is not None:
                self._findings.add(of.first, count=of.grew)


def _step(window: Window, together: Together) -> _Step | None:
    """None where no one number multiplies all losses last, or no one factor explains the step."""
    scale, kappas = scale_of(window), together.kappas.get(window.rank, [])
    if window.step is None or scale is None or not kappas or max(kappas) > min(kappas) * (1 + _NEAR):
        return None
    return _Step(window, scale, kappas[0] * scale)


def _finding(step: _Step, following: float) -> Finding:
    window = step.window
    says = f"a loss that was multiplied by {step.scale:g} has gradients that are divided by {following:g}, the loss "
    says += "scale of the next window"
    effect = f"the gradients used are {step.off:.3g} of what they should be, each time that the scale has grown"
    return Finding("watch/unscaled", says, window.index, (window.rank,), window.site, effect, window.optimizer)
