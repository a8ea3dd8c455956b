"""A loss scale that the script keeps itself: is it undone by the same number, and is a step left out on overflow?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isclose

import numpy as np

from conformance.watch.judging.by_scale import OFTEN, ByScale
from conformance.watch.judging.case import Case, Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.multiplied import scale_of
from conformance.watch.judging.windows import Window

_NEAR = 0.02


def is_undone(window: Window, together: Together) -> bool:
    """Whether the losses have a scale other than 1, and the step divides by just this."""
    own, kappas = scale_of(window) or 1.0, together.kappas.get(window.rank, [])
    if window.step is None or len(window.scales) != 1 or window.scales[0] * own == 1.0 or not kappas:
        return False
    # A sum over ranks is another property, unless it could be the scale that was left in.
    rights = {1.0, float(together.ranks)} - {window.scales[0] * own}
    return any(all(isclose(kappa * own, right, rel_tol=_NEAR) for kappa in kappas) for right in rights)


@dataclass
class _Own:
    """Of an optimizer on a rank. before: the last window. off: its factor times its scale, None if there is no single
    one. undone, others: how many steps divide by their scale, and how many do not. made_up: how many use finite numbers
    instead of an overflow. first: of these."""

    before: Window | None = None
    off: float | None = None
    undone: int = 0
    others: int = 0
    made_up: int = 0
    first: Finding | None = None

    @property
    def is_made_up(self) -> bool:
        return self.first is not None and self.undone >= OFTEN and not self.others


class OwnScale:
    """Of the processes that train together.

    A number that losses are multiplied with, and gradients divided by, is a loss scale: it has no other use. A factor
    that is right but for the windows before the number grows, and wrong there by just this growth, shows that the scale
    was updated too early. Gradients that overflow at a scale may be finite at a smaller one, so what replaces them
    depends on the scale and not on the loss only. Zeros for all of a gradient leave the step out.
    """

    def __init__(self, findings: Findings, by_scale: ByScale) -> None:
        self._findings, self._by_scale = findings, by_scale
        self._of: dict[tuple[int, int], _Own] = defaultdict(_Own)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.is_made_up for of in self._of.values())

    def judge(self, together: Together) -> None:
        """A step whose factors are known, where there is one."""
        for window in together.here:
            of, scale = self._of[window.optimizer, window.rank], scale_of(window)
            if window.step is None or scale is None:
                of.before = None
                continue
            self._compare(of, window, scale)
            self._count(of, window, scale, together)
            kappas = together.kappas.get(window.rank, [])
            is_one = bool(kappas) and max(kappas) <= min(kappas) * (1 + _NEAR)
            of.before, of.off = window, kappas[0] * scale if is_one else None

    def _compare(self, of: _Own, window: Window, following: float) -> None:
        """Did the window before divide by the scale of this one?"""
        before = of.before
        scale = None if before is None else scale_of(before)
        if before is None or scale is None or of.off is None or following < scale:
            return
        if window.clock - len(window.backwards) == before.clock:
            ratio = following / scale
            self._by_scale.add("next", before, ratio, of.off * ratio, before.site, shows=ratio > 1)

    def _count(self, of: _Own, window: Window, scale: float, together: Together) -> None:
        if lost := _made_up(together, window):
            of.made_up += 1
            says = said("overflow.own", scale=scale)
            effect = said("overflow.own.effect", lost=lost, used=len(window.used))
            at = window.index, (window.rank,), window.site
            of.first = of.first or Finding("watch/finite", says, *at, effect, window.optimizer)
        elif together.kappas.get(window.rank):
            is_right = is_undone(window, together)
            of.undone += is_right
            of.others += not is_right

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.is_made_up:
                self._findings.add(of.first, count=of.made_up)


def _made_up(together: Together, window: Window) -> int:
    """How many parameters have a gradient that is not what backward passes gave, which were not finite."""
    lost = [number for number, found in window.new.items() if not all(one.is_finite for one in found)]
    lost = [number for number in lost if number in window.used and window.used[number][2]]
    if not lost or not all(np.isfinite(sketch).all() for sketch in window.used.values()):
        return 0
    # The passes that overflowed may have been left out.
    case = Case(together, window, lost, [])
    rest = case.fits(case.finite)
    return 0 if rest is not None and rest.is_known else len(lost)
