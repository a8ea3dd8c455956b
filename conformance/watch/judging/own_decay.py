"""Is weight decay added to gradients by hand while they still carry the loss scale?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import isclose

import numpy as np

from conformance.watch.judging.case import Case, Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.sizes import WHOLE

_OFTEN = 3
"""Steps at a scale."""

_MOST_SCALES = 16
_NEAR = 0.02
_WHOLE_AT_FIRST = 16
"""Steps, see `recording/parameters.py`."""

_AMPLE = 4
"""Equations beyond the two unknowns."""

_CLEAR = 16
"""What a term is to be in some equation, in bounds of rounding."""


@dataclass
class _Decay:
    """Of an optimizer on a rank, by loss scale: in the first steps, the weights' share in the gradients, times the
    scale."""

    of: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: Finding | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether it is the same at several scales."""
        known = [share for shares in self.of.values() for share in shares]
        often = [shares for shares in self.of.values() if len(shares) >= _OFTEN]
        return len(often) > 1 and all(isclose(share, known[0], rel_tol=_NEAR) for share in known)


class OwnDecay:
    """Of the processes that train together.

    Where each step uses its gradients and a term along the weights, as of weight decay, that term is the same share of
    the weights at all loss scales if it is added to unscaled gradients. One that is half as large whenever the scale is
    twice as large was divided by it, though no loss scale has ever multiplied it.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Decay] = defaultdict(_Decay)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.is_scaled for of in self._of.values())

    def judge(self, together: Together) -> None:
        """A step of all ranks."""
        for window in together.here:
            step = window.step
            if step is None or step.closure or len(window.unscales) != 1 or len(window.scales) != 1:
                continue
            [scale], of = window.scales, self._of[window.optimizer, window.rank]
            share = None if scale == 1.0 else _share(together, window, scale)
            if share is None or (scale not in of.of and len(of.of) >= _MOST_SCALES):
                continue
            of.of[scale].append(share * scale)
            del of.of[scale][_MOST_SCALES:]
            says = f"{share * scale:.3g} of each weight is added to gradients that are divided by the loss scale then"
            effect = f"of the term along the weights, 1/{scale:g} is left"
            ranks, site = (window.rank,), window.unscales[0][1].site
            of.first = of.first or Finding("watch/unscaled", says, window.index, ranks, site, effect, window.optimizer)

    def finish(self) -> None:
        for of in self._of.values():
            if of.is_scaled and of.first is not None:
                self._findings.add(of.first, count=sum(map(len, of.of.values())))


def _share(together: Together, window: Window, scale: float) -> float | None:
    """What a step used of the weights, beside the right mean of all gradients; None if it did not, or if it is not
    known."""
    # Later than at first, a sample of the weights is looked at, now and then.
    held = [
        number
        for number in window.used
        if number in window.weights and window.samples.get(number, WHOLE) in (WHOLE, window.index - _WHOLE_AT_FIRST)
    ]
    sets = {window.clips_of(number) for number in held}
    if len(sets) != 1 or not all(np.isfinite(window.used[number]).all() for number in held):
        return None
    case = Case(together, window, held, [*sets.pop()])
    is_finite = all(one.is_finite for number in held for one in case.all(number))
    if case.is_limited or case.independent < 2 + _AMPLE or not case.is_of_one_sample or not is_finite:
        return None
    equations = case.equations(case.all)
    right = case.clipped / scale
    matrix = np.array([[one.local, window.weights[one.of][n % 2]] for n, one in enumerate(equations)])
    used = np.array([one.used for one in equations])
    bounds = np.array([max(one.slack + right * one.spread, 1e-300) for one in equations])
    weighed = matrix / bounds[:, None]
    if not np.isfinite(weighed).all() or np.linalg.matrix_rank(weighed) < 2:
        return None
    factors = np.linalg.lstsq(weighed, used / bounds, rcond=None)[0]
    off = np.abs(weighed @ factors - used / bounds).max()
    is_mean = any(isclose(factors[0], one, rel_tol=_NEAR) for one in (right, right / together.ranks))
    is_clear = np.abs(weighed[:, 1] * factors[1]).max() > _CLEAR
    return float(factors[1] / case.clipped) if off <= 1 and is_mean and is_clear else None
