"""Does a loss scaler of the script's own step where gradients overflow?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import isclose

import numpy as np

from conformance.watch.judging.case import Case, Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.multiplied import scale_of
from conformance.watch.judging.windows import Window

_NEAR = 0.02
_SEVERAL = 3
"""Steps that divide gradients by just what their losses were multiplied with."""


@dataclass
class _Steps:
    """Of an optimizer on a rank. undone: how many steps divide by the scale. others: how many do not. made_up: how many
    use finite numbers in place of an overflow. first: of these."""

    undone: int = 0
    others: int = 0
    made_up: int = 0
    first: Finding | None = None

    @property
    def is_proof(self) -> bool:
        return self.first is not None and self.undone >= _SEVERAL and not self.others


class OwnOverflow:
    """Of the processes that train together.

    A number that losses are multiplied with, and gradients divided by, is a loss scale: it has no other use. Gradients
    that are not finite at this scale may be finite at a smaller one. So what is put in their place depends on the
    scale, and not on the loss alone; the step is to be left out, as zeros in place of a whole gradient do."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Steps] = defaultdict(_Steps)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.is_proof for of in self._of.values())

    def judge(self, together: Together) -> None:
        """A step whose factors are known, where there is one."""
        for window in together.here:
            scale = scale_of(window)
            if scale is None or window.step is None:
                continue
            of = self._of[window.optimizer, window.rank]
            kappas = together.kappas.get(window.rank, [])
            if lost := _made_up(together, window):
                of.made_up += 1
                of.first = of.first or _finding(window, scale, lost)
            elif kappas and all(isclose(kappa * scale, 1, rel_tol=_NEAR) for kappa in kappas):
                of.undone += 1
            elif kappas:
                of.others += 1

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.is_proof:
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


def _finding(window: Window, scale: float, lost: int) -> Finding:
    says = (
        f"gradients overflowed at the script's own loss scale {scale:g}, and the step uses finite ones in their place"
    )
    effect = f"the gradients of {lost} of {len(window.used)} parameters are made up"
    return Finding("watch/finite", says, window.index, (window.rank,), window.site, effect, window.optimizer)
