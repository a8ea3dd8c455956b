"""Judges the loss scale: gradients are unscaled before clipping, and no step uses gradients that overflowed.

`hypotheses.py` judges the factor that a loss scale leaves in a step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isclose, isfinite, sqrt

from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.sketch_bounds import ROUNDOFF
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.targets import own_scale, scale_of
from conformance.watch.judging.windows import Window, factor_of
from conformance.watch.records import Clipped, Record, Updated
from conformance.watch.sizes import WHOLE

_NEAR = 0.02
_FAR = 1e3
"""Ratio of the last to the first rate in a learning-rate range test."""

_SEVERAL = 3
"""Steps on finite gradients that show restored weights. One may be finite because it does not use the lost weights."""

_SCALES = 2

_LAW = "watch/unscale-before-clip"


class LossScale(Chapter):
    """Detects gradients that are clipped before they are unscaled, and scalers without updates.

    waiting: ranks and optimizers with scaled gradients since the last update on this rank. updated: by rank, the last
    update of the newest scaler. lost: by rank, the new scalers that start where this one did, although it has changed
    its scale. by_hand: by rank and optimizer, hand-written scales."""

    fed = (Updated,)

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._waiting: set[tuple[int, int]] = set()
        self._updated: dict[int, Updated] = {}
        self._lost: Counter[int] = Counter()
        self._by_hand: dict[tuple[int, int], _ByHand] = defaultdict(_ByHand)

    def feed(self, rank: int, record: Record, stream: Stream) -> None:
        if isinstance(record, Updated):
            self._waiting = {one for one in self._waiting if one[0] != rank}
            newest = self._updated.setdefault(rank, record)
            self._lost[rank] += newest.scaler < record.scaler and newest.after != newest.before == record.before
            if newest.scaler <= record.scaler:
                self._updated[rank] = record

    def see(self, window: Window) -> None:
        step = window.step
        if step is None or step.grad_scale is not None or window.unscales:
            if (window.rank, window.optimizer) in self._waiting:
                says = said("loss-scale.not-updated", scale=max(window.scales, default=1.0))
                self._findings.leave_open(says, 1, window.index, window.site)
            self._waiting.add((window.rank, window.optimizer))
        for clip, scale in _scaled_clips(window) if step is not None and not step.closure and window.places else ():
            says = said(f"clipping.scaled-{clip.how}", scale=scale, limit=clip.limit)
            if is_literal(clip.limit, scale, len(window.backwards)):
                finding = Finding.of(window, _LAW, says, _left(clip, scale), clip.site)
                self._findings.add(finding)
                window.broken.append(finding.key)
            else:
                self._findings.leave_open(says, 1, window.index, clip.site)

    def judge(self, together: Together) -> None:
        self._findings.seen[Property.LOSS_SCALE] += sum(_is_undone(window, together) for window in together.here)
        for window in together.here:
            if (scale := _left_in(window, together)) is not None:
                self._findings.leave_open(said("loss-scale.left", scale=scale), 1, window.index, window.site)
            scale, kappas = own_scale(window, together.ranks), {*together.kappas.get(window.rank, [])}
            if scale is not None and len(kappas) == 1:
                self._by_hand[window.rank, window.optimizer].take(window, scale, kappas.pop())

    def finish(self, end: End) -> None:
        for rank, lost in self._lost.items():
            if lost > 1:
                updated = self._updated[rank]
                says = said("loss-scale.restarts", scalers=lost, scale=updated.before)
                self._findings.leave_open(says, lost, None, updated.site)
        for of in self._by_hand.values():
            if of.is_proof:
                for found in of.wrong.values():
                    self._findings.add(found)


@dataclass
class _ByHand:
    """Hand-written loss scales of an optimizer on a rank. right: scales that its steps divide out. wrong: by scale, the
    first step that divides by the scale of the next step instead. last: the last step that does neither, its scale and
    its factor."""

    right: set[float] = field(default_factory=set)
    wrong: dict[float, Finding] = field(default_factory=dict)
    last: tuple[Window, float, float] | None = None

    @property
    def is_proof(self) -> bool:
        """Whether no constant of the script explains both kinds of steps."""
        return min(len(self.right), len(self.wrong)) >= _SCALES

    def take(self, window: Window, scale: float, kappa: float) -> None:
        if self.last is not None and scale != self.last[1] and isclose(self.last[2] * scale, 1, rel_tol=_NEAR):
            before, left, _ = self.last
            says, effect = said("unscaled-by-another", scale=left, divisor=scale), said("factor", factor=left / scale)
            self.wrong.setdefault(left, Finding.of(before, "watch/unscaled", says, effect))
        is_right = isclose(kappa * scale, 1, rel_tol=_NEAR)
        self.right |= {scale} if is_right else set()
        self.last = None if is_right else (window, scale, kappa)


def _scaled_clips(window: Window) -> Iterator[tuple[Clipped, float]]:
    """Clips of gradients that are unscaled later, and their scale. Excludes limits that are not far below the scale: a
    script may scale the limit like the gradients."""
    if (scale := max(window.scales, default=1.0)) == 1.0:
        return
    last, step = max(window.places), window.step
    for at, clip in window.clips:
        own = [one.at for number in clip.parameters for one in window.new.get(number, [])]
        is_unscaled = any(unscaled < at for unscaled, _ in window.unscales)
        # The script may have divided them itself: an average over ranks does not make them so much shorter.
        is_unscaled |= bool(clip.norm) and scale > 1.0 and (clip.norm or 0.0) * sqrt(scale) < _norm(window, clip)
        # Without a recorded unscale, the script divides the gradients itself, before or after the clip.
        is_later = (step is not None and step.grad_scale is not None) or any(other > at for other, _ in window.unscales)
        is_far_below = scale < 1.0 or clip.limit < sqrt(scale)
        # A limit of 0 has the same effect at any scale.
        if at > max(own, default=last) and clip.limit and not is_unscaled and is_later and is_far_below:
            yield clip, scale


def _norm(window: Window, clip: Clipped) -> float:
    """The norm of this rank's gradients that a clip covers, from their longest passes."""
    passes = (window.new.get(number, ()) for number in clip.parameters)
    return sqrt(sum(max((one.sketch[..., 2] ** 2).sum() for one in of) for of in passes if of))


def is_literal(limit: float, scale: float, passes: int, within: float = 1e-9) -> bool:
    """Whether the script has this limit as a literal, not another limit times the loss scale: for the window, or for
    each of its micro-batches. Literals have few digits: 5 at a scale of 32 is not a scaled 0.15625. within: relative
    accuracy of the limit."""

    def is_round(number: float, digits: int) -> bool:
        return isclose(float(f"{number:.{digits}g}"), number, rel_tol=within)

    return is_round(limit, 2) and not is_round(limit / scale, 3) and not is_round(limit / scale * passes, 2)


def is_unscaled_last(window: Window) -> bool | None:
    """Whether the step uses what a scaler unscaled, without a change in between; None if it is not known."""
    if len(window.unscales) != 1:
        return None
    [(_, unscaled)] = window.unscales
    found = [
        isclose(float(window.used[number][2]) * unscaled.scale, float(sketch[2]), rel_tol=_NEAR)
        for number, sketch, sample in zip(unscaled.parameters, unscaled.before, unscaled.samples, strict=True)
        if number in window.used and window.samples.get(number, WHOLE) == sample and sketch[2]
    ]
    return all(found) if found else None


def _left(clip: Clipped, scale: float) -> Said:
    if clip.how != "norm" or not clip.norm:
        return said("clip.scaled.effect", scale=scale)
    right = factor_of(replace(clip, norm=clip.norm / scale))
    return said("clip.left.effect", left=factor_of(clip) / right)


def _left_in(window: Window, together: Together) -> float | None:
    """A hand-written scale of losses with gradients in half precision that the step did not undo."""
    is_half = any(one.roundoff >= ROUNDOFF["float16"] for of in window.new.values() for one in of)
    is_left = {*together.kappas.get(window.rank, [])} == {1.0}
    return own_scale(window, together.ranks) if is_half and is_left else None


def _is_undone(window: Window, together: Together) -> bool:
    """Whether the losses have a scale other than 1, and the step divides by exactly this scale."""
    own, kappas = scale_of(window) or 1.0, together.kappas.get(window.rank, [])
    if (
        window.step is None
        or len(window.scales) != 1
        or not kappas
        or isclose(window.scales[0] * own, 1, rel_tol=_NEAR)
    ):
        return False
    # A sum over ranks concerns another property, unless the scale equals the number of ranks.
    rights = {1.0, float(together.ranks)} - {window.scales[0] * own}
    return any(all(isclose(kappa * own, right, rel_tol=_NEAR) for kappa in kappas) for right in rights)


@dataclass
class _Steps:
    """The steps of an optimizer on a rank. begin, end: the first and last backward pass of its steps. parameters: those
    that it steps. first, count: its first step on non-finite gradients, and their number. infinite: the parameters with
    such gradients. rates: the first and the last rate, None unless rates only grow."""

    begin: int
    end: int = 0
    parameters: set[int] = field(default_factory=set)
    first: Finding | None = None
    count: int = 0
    infinite: set[int] = field(default_factory=set)
    rates: tuple[float, float] | None = (0.0, 0.0)

    @property
    def is_test(self) -> bool:
        """Whether this is a learning-rate range test, with rates that only grow."""
        return self.rates is not None and self.rates[1] > _FAR * self.rates[0]

    def is_apart(self, other: _Steps) -> bool:
        """Whether the other one comes before or after, has other parameters, and has only finite gradients."""
        are_in_turn = other.begin > self.end or other.end < self.begin
        return are_in_turn and other.first is None and other.parameters.isdisjoint(self.parameters)


class Finite(Chapter):
    """Detects steps on gradients that are not finite.

    Such a step turns weights into NaN for good. If later gradients are finite, the script restored the weights or
    trains another model, so the steps before were a trial; so is a range test of rates. restored: by rank and
    parameter with non-finite gradients, the number of finite ones since.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self._of: dict[int, dict[int, _Steps]] = defaultdict(dict)
        self._restored: dict[int, Counter[int]] = defaultdict(Counter)

    @property
    def accuses(self) -> bool:
        return any(of.first and not self._is_trial(rank, of) for rank in self._of for of in self._of[rank].values())

    def see(self, window: Window) -> None:
        if window.step is None:
            return
        begin = min(window.backwards, default=window.clock)
        of = self._of[window.rank].setdefault(window.optimizer, _Steps(begin))
        of.end = window.clock
        of.parameters |= {*window.step.parameters}
        rate = max((rate for rate in window.step.rates if rate is not None), default=0.0)
        of.rates = (of.rates[0] or rate, rate) if of.rates is not None and rate > of.rates[1] else None
        infinite = {number for number, sketch in window.used.items() if not isfinite(sketch[2])}
        if restored := self._restored[window.rank]:
            restored.update(restored.keys() & window.used.keys() - infinite)
        if not infinite or window.step.found_inf:
            return
        if window.step.is_own:
            self._findings.leave_open(said("loss-scale.not-finite"), 1, window.index, window.site)
            return
        effect = said("finite.of", wrong=len(infinite), all=len(window.step.parameters))
        found = Finding.of(window, "watch/finite", said("finite.step"), effect)
        window.broken.append(found.key)
        of.infinite |= infinite
        for number in of.infinite:
            restored[number] = 0
        of.first, of.count = of.first or found, of.count + 1

    def finish(self, end: End) -> None:
        for rank, by_optimizer in self._of.items():
            for of in by_optimizer.values():
                if of.first is not None and self._is_trial(rank, of):
                    says = said("loss-scale.not-finite")
                    self._findings.leave_open(says, of.count, of.first.step, of.first.site)
                elif of.first is not None:
                    self._findings.add(of.first, count=of.count)

    def _is_trial(self, rank: int, of: _Steps) -> bool:
        is_put_back = all(self._restored[rank][number] >= _SEVERAL for number in of.infinite)
        return is_put_back or of.is_test or any(of.is_apart(other) for other in self._of[rank].values())
