"""The loss scale: unscaled before clipping, undone by the step, and no step on what overflowed.

Judges everything of a loss scale but the factor of a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot, isclose, isfinite, sqrt

import numpy as np

from conformance.watch.judging.case import Together, factor_of
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, Open, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.targets import scale_of
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped, Site

_NEAR = 0.02
_OVERFLOW = 2.0**15
"""A limit of so much keeps what is added up later from an overflow of float16."""

_OFTEN = 3
"""Windows at a scale that have the same value."""

_MOST_VALUES, _MOST_SCALES = 64, 16

_FAR = 1e3
"""A test of learning rates goes so far, from its first rate to its last."""

_SEVERAL = 3
"""Steps on finite gradients. One may go where the weights that are lost do not count."""


class LossScale(Chapter):
    """Judges the processes that train together.

    A limit should follow the loss scale of the gradients that it limits. One that stays the same while the scale
    changes, or that unscaled gradients are compared with, too, does not. A script may scale the limit as its gradients
    are, and divide both later: such a limit is not far below the loss scale. Limits are written in few digits: 5 at a
    scale of 32 is no 0.15625 that was scaled.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._limits: dict[tuple[int, int, str], _Limit] = {}
        self._open: dict[tuple[int, int, str], Open] = {}

    @property
    def accuses(self) -> bool:
        return any(limit.is_wrong for limit in self._limits.values())

    def see(self, window: Window) -> None:
        """The window of a rank."""
        step = window.step
        if step is not None and not step.closure and window.places:
            self._see_clips(window, step.grad_scale is not None)
        self._see_limits_by_hand(window)

    def judge(self, together: Together) -> None:
        """A step of all ranks, whose factors are known."""
        self._findings.seen[Property.LOSS_SCALE] += sum(_is_undone(window, together) for window in together.here)

    def _see_clips(self, window: Window, is_unscaled_later: bool) -> None:
        """Are gradients unscaled before they are clipped?"""
        last, scale = max(window.places), max(window.scales, default=1.0)
        for at, clip in window.clips:
            own = [one.at for number in clip.parameters for one in window.new.get(number, [])]
            # What is made zero on purpose is zero at any scale.
            if at < max(own, default=last) or not clip.limit:
                continue
            if scale == 1.0 or any(unscaled < at for unscaled, _ in window.unscales):
                self._add(_row(window, clip), window, 1.0, clip.limit, clip.site, shows=False)
                continue
            # Without one the script has divided by itself, before or after.
            is_later = is_unscaled_later or any(unscaled > at for unscaled, _ in window.unscales)
            if is_later and (scale < 1.0 or clip.limit < sqrt(scale)):
                self._find(window, clip, scale)

    def _find(self, window: Window, clip: Clipped, scale: float) -> None:
        says = said(f"clipping.scaled-{clip.how}", scale=scale, limit=clip.limit)
        if _is_written(clip.limit, scale, len(window.backwards)):
            law, rank, effect = "watch/unscale-before-clip", (window.rank,), _left(clip, scale)
            finding = Finding(law, says, window.index, rank, clip.site, effect, window.optimizer)
            self._findings.add(finding)
            window.broken.append(finding.key)
            return
        row = _row(window, clip)
        self._add(row, window, scale, clip.limit, clip.site)
        at = window.optimizer, window.rank, row
        self._open.setdefault(at, Open(says, 0, window.index, clip.site)).count += 1

    def _see_limits_by_hand(self, window: Window) -> None:
        """Are gradients limited by hand before they are unscaled?

        A script that brings them to one length again after that, or takes their signs, uses only their direction. Its
        own optimizer may do so in its step."""
        # Twice in a window, or before the last backward pass, is another mistake.
        if len(window.unscales) != 1 or window.unscales[0][0] < max(window.places, default=0):
            return
        [(_, unscaled)] = window.unscales
        used = hypot(*(float(sketch[2]) for sketch in window.used.values()))
        is_longer = unscaled.norm is not None and used * unscaled.scale > 2 * unscaled.norm
        for row, value in (("largest", unscaled.largest), ("norm", unscaled.norm)):
            if value and isfinite(value) and value < _OVERFLOW:
                limit = self._add(row, window, unscaled.scale, value, unscaled.site)
                limit.is_meant |= is_longer or (window.step is not None and window.step.is_own)

    def _add(self, row: str, window: Window, scale: float, value: float, site: Site, *, shows: bool = True) -> _Limit:
        """shows: whether the window would be wrong if the limit is constant."""
        limit = self._limits.setdefault((window.optimizer, window.rank, row), _Limit(ROWS[row]))
        limit.add(scale, value)
        if shows and limit.first is None:
            says, rank, law = said(f"scale.{row}"), (window.rank,), "watch/unscale-before-clip"
            limit.first = Finding(law, says, window.index, rank, site, None, window.optimizer)
            limit.scale = scale
        return limit

    def finish(self, end: End) -> None:
        for at, one in self._open.items():
            if not self._limits[at].is_wrong:
                self._findings.leave_open(one.says, one.count, one.step, one.site)
        for (_, _, row), limit in self._limits.items():
            if limit.first is not None and limit.is_wrong:
                value, scales = limit.same
                values = {"scale": limit.scale, "value": value, "scales": scales}
                says, effect = said(f"scale.{row}", **values), said(f"scale.{row}.effect", **values)
                count = sum(len(limit.of[scale]) for scale in scales)
                self._findings.add(replace(limit.first, says=says, effect=effect), count=count)


@dataclass(frozen=True)
class _Row:
    """A kind of limit. near: up to which relative difference two values are equal. least: times a scale, the smallest
    value that anybody would choose to follow it: one scale proves a smaller one."""

    near: float
    least: float = 0.0


ROWS: Mapping[str, _Row] = {
    # What is unscaled: its largest element, and its norm, which rounds. Both grow with the scale, unless limited.
    "largest": _Row(1e-6),
    "norm": _Row(1e-4),
    # The limit of a clip call that gets scaled gradients. Nobody limits the norm of a model to less than a thousandth;
    # that of a small layer may have such a limit.
    "limit": _Row(1e-9, least=1e-3 * (1 - 1e-6)),
    "part-limit": _Row(1e-9),
    "element-limit": _Row(1e-9),
}


@dataclass
class _Limit:
    """A limit of an optimizer on a rank. of: by loss scale, the first values. first, scale: what shows the first of
    them, and its scale. is_meant: whether the script undoes what makes it constant."""

    row: _Row
    of: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: Finding | None = None
    scale: float = 1.0
    is_meant: bool = False

    def add(self, scale: float, value: float) -> None:
        if (scale in self.of or len(self.of) < _MOST_SCALES) and len(self.of[scale]) < _MOST_VALUES:
            self.of[scale].append(value)

    @property
    def same(self) -> tuple[float, list[float]]:
        """The value that most windows have at the most scales, and these scales."""
        found: dict[float, list[float]] = {}
        for scale, values in sorted(self.of.items()):
            middle = sorted(values)[len(values) // 2]
            count = sum(isclose(value, middle, rel_tol=self.row.near) for value in values)
            if count >= _OFTEN and 2 * count > len(values):
                equal = next((one for one in found if isclose(one, middle, rel_tol=self.row.near)), middle)
                found.setdefault(equal, []).append(scale)
        return max(found.items(), key=lambda item: len(item[1]), default=(0.0, []))

    @property
    def is_wrong(self) -> bool:
        value, scales = self.same
        is_constant = len(scales) > 1 or any(value < self.row.least * scale for scale in scales if scale != 1.0)
        return is_constant and not self.is_meant and self.first is not None


def _row(window: Window, clip: Clipped) -> str:
    """Which of `ROWS` its limit is in."""
    if clip.how == "value":
        return "element-limit"
    clipped = sum(window.sizes.get(number, 1) for number in {*clip.parameters})
    is_most = 2 * clipped >= sum(window.sizes.get(number, 1) for number in window.used)
    return "limit" if is_most else "part-limit"


def _is_written(limit: float, scale: float, passes: int) -> bool:
    """Whether somebody wrote down this limit, and not another one that was multiplied by the loss scale: for the whole
    window, or for each of so many micro-batches."""
    return _is_round(limit, 2) and not _is_round(limit / scale, 3) and not _is_round(limit / scale * passes, 2)


def _is_round(number: float, digits: int) -> bool:
    return isclose(float(f"{number:.{digits}g}"), number, rel_tol=1e-9)


def _left(clip: Clipped, scale: float) -> Said:
    if clip.how != "norm" or not clip.norm:
        return said("clip.scaled.effect", scale=scale)
    right = factor_of(replace(clip, norm=clip.norm / scale))
    return said("clip.left.effect", left=factor_of(clip) / right)


def _is_undone(window: Window, together: Together) -> bool:
    """Whether the losses have a scale other than 1, and the step divides by just this."""
    own, kappas = scale_of(window) or 1.0, together.kappas.get(window.rank, [])
    if window.step is None or len(window.scales) != 1 or window.scales[0] * own == 1.0 or not kappas:
        return False
    # A sum over ranks is another property, unless it could be the scale that was left in.
    rights = {1.0, float(together.ranks)} - {window.scales[0] * own}
    return any(all(isclose(kappa * own, right, rel_tol=_NEAR) for kappa in kappas) for right in rights)


@dataclass
class _Of:
    """An optimizer of a rank. begin, end: the first backward pass of its steps, and the last one before them.
    parameters: those that it steps. first, count: its first step on gradients that are not finite, and how many.
    infinite: the parameters of these. rates: the first and the last rate, as long as each step has a larger one."""

    begin: int
    end: int = 0
    parameters: set[int] = field(default_factory=set)
    first: Finding | None = None
    count: int = 0
    infinite: set[int] = field(default_factory=set)
    rates: tuple[float, float] | None = (0.0, 0.0)

    def see(self, rate: float) -> None:
        if self.rates is not None:
            first, last = self.rates
            self.rates = (first or rate, rate) if rate > last else None


class Finite(Chapter):
    """Detects steps on gradients that are not finite.

    A step makes NaN of weights for good. A script that goes on with finite gradients has put the weights back, or
    trains another model, so the steps before were a trial; so is a test of rates, which only grow. restored: by rank
    and parameter that had gradients which were not finite, how many finite ones it had since.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[int, dict[int, _Of]] = defaultdict(dict)
        self._restored: dict[int, Counter[int]] = defaultdict(Counter)

    @property
    def accuses(self) -> bool:
        return any(of.first and not self._is_trial(rank, of) for rank in self._of for of in self._of[rank].values())

    def see(self, window: Window) -> None:
        if window.step is None:
            return
        begin = min(window.backwards, default=window.clock)
        of = self._of[window.rank].setdefault(window.optimizer, _Of(begin))
        of.end = window.clock
        of.parameters |= {*window.step.parameters}
        of.see(max((rate for rate in window.step.rates if rate is not None), default=0.0))
        infinite = {number for number, sketch in window.used.items() if not np.isfinite(sketch).all()}
        restored = self._restored[window.rank]
        restored.update(restored.keys() & window.used.keys() - infinite)
        if not infinite or window.step.found_inf:
            return
        if window.step.is_own:
            self._findings.leave_open(said("loss-scale.not-finite"), 1, window.index, window.site)
            return
        says, rank = said("finite.step"), (window.rank,)
        effect = said("finite.of", wrong=len(infinite), all=len(window.step.parameters))
        found = Finding("watch/finite", says, window.index, rank, window.site, effect, window.optimizer)
        of.infinite |= infinite
        for number in of.infinite:
            restored[number] = 0
        window.broken.append(found.key)
        of.first, of.count = of.first or found, of.count + 1

    def finish(self, end: End) -> None:
        for rank, by_optimizer in self._of.items():
            for of in by_optimizer.values():
                if of.first is None:
                    continue
                if self._is_trial(rank, of):
                    says = said("loss-scale.not-finite")
                    self._findings.leave_open(says, of.count, of.first.step, of.first.site)
                else:
                    self._findings.add(of.first, count=of.count)

    def _is_trial(self, rank: int, of: _Of) -> bool:
        is_put_back = all(self._restored[rank][number] >= _SEVERAL for number in of.infinite)
        is_test = of.rates is not None and of.rates[1] > _FAR * of.rates[0]
        return is_put_back or is_test or any(_are_others(of, other) for other in self._of[rank].values())


def _are_others(of: _Of, other: _Of) -> bool:
    """Whether one comes after the other, with other parameters, and has only finite gradients."""
    is_apart = other.begin > of.end or other.end < of.begin
    return is_apart and other.first is None and other.parameters.isdisjoint(of.parameters)
