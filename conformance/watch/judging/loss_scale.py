"""Is all that varies with a loss scale undone by it? Judges everything of a loss scale but the factor of a step."""

from __future__ import annotations

from math import hypot, isclose, isfinite

import numpy as np

from conformance.watch.judging.by_scale import ByScale
from conformance.watch.judging.case import Case, Together
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.own_scale import OwnScale, is_undone
from conformance.watch.judging.properties import Property
from conformance.watch.judging.unscaling import Unscaling
from conformance.watch.judging.windows import Window
from conformance.watch.sizes import WHOLE

_NEAR = 0.02
_OVERFLOW = 2.0**15
"""A limit of so much keeps what is added up later from an overflow of float16."""

_WHOLE_AT_FIRST = 16
"""Steps, see `recording/parameters.py`."""

_AMPLE = 4
"""Equations beyond the two unknowns."""

_CLEAR = 16
"""What a term is to be in some equation, in bounds of rounding."""


class LossScale:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._by_scale = ByScale(findings)
        self._unscaling = Unscaling(findings, self._by_scale)
        self._own = OwnScale(findings, self._by_scale)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return self._by_scale.accuses or self._own.accuses

    def judge(self, window: Window) -> None:
        """The window of a rank."""
        self._unscaling.judge(window)
        _limits(window, self._by_scale)

    def judge_step(self, together: Together) -> None:
        """A step of all ranks, whose factors are known."""
        for window in together.here:
            self._findings.seen[Property.LOSS_SCALE] += is_undone(window, together)
            _weights(together, window, self._by_scale)
        self._own.judge(together)

    def finish(self) -> None:
        self._unscaling.finish()
        self._own.finish()
        self._by_scale.finish()


def _limits(window: Window, by_scale: ByScale) -> None:
    """Are gradients limited by hand before they are unscaled?

    A script that brings them to one length again after that, or takes their signs, uses only their direction. Its own
    optimizer may do so in its step."""
    # Twice in a window, or before the last backward pass, is another mistake.
    if len(window.unscales) != 1 or window.unscales[0][0] < max(window.places, default=0):
        return
    [(_, unscaled)] = window.unscales
    used = hypot(*(float(sketch[2]) for sketch in window.used.values()))
    is_longer = unscaled.norm is not None and used * unscaled.scale > 2 * unscaled.norm
    for row, value in (("largest", unscaled.largest), ("norm", unscaled.norm)):
        if value and isfinite(value) and value < _OVERFLOW:
            by_scale.add(row, window, unscaled.scale, value, unscaled.site)
            if is_longer or (window.step is not None and window.step.is_own):
                by_scale.is_meant(row, window)


def _weights(together: Together, window: Window, by_scale: ByScale) -> None:
    """Is a term along the weights, as of weight decay, added before gradients are unscaled?"""
    step = window.step
    if step is None or step.closure or len(window.unscales) != 1 or len(window.scales) != 1 or window.scales == [1.0]:
        return
    [scale] = window.scales
    share = _share(together, window, scale)
    if share is not None:
        by_scale.add("weights", window, scale, share * scale, window.unscales[0][1].site)


def _share(together: Together, window: Window, scale: float) -> float | None:
    """What a step used of the weights, besides the right mean of all gradients; None if it did not, or if it is not
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
