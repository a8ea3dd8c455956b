"""Are gradients unscaled before they are clipped?"""

from __future__ import annotations

from dataclasses import replace
from math import isclose, sqrt

from conformance.watch.judging.by_scale import ByScale
from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings, Open, Said, said
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped


class Unscaling:
    """Of the processes that train together.

    A script may also scale the limit as its gradients are, and divide both later. Such a limit is not far below the
    loss scale, and it changes with it: one that stays the same while the scale changes, or that unscaled gradients are
    compared with, too, is none. Limits are written in few digits: 5 at a scale of 32 is no 0.15625 that was scaled.
    """

    def __init__(self, findings: Findings, by_scale: ByScale) -> None:
        self._findings, self._by_scale = findings, by_scale
        self._open: dict[tuple[str, int, int], Open] = {}

    def judge(self, window: Window) -> None:
        step = window.step
        if step is None or step.closure or not window.places:
            return
        last, scale = max(window.places), max(window.scales, default=1.0)
        for at, clip in window.clips:
            own = [one.at for number in clip.parameters for one in window.new.get(number, [])]
            # What is made zero on purpose is zero at any scale.
            if at < max(own, default=last) or not clip.limit:
                continue
            if scale == 1.0 or any(unscaled < at for unscaled, _ in window.unscales):
                self._by_scale.add(_row(window, clip), window, 1.0, clip.limit, clip.site, shows=False)
                continue
            # Without one the script has divided by itself, before or after.
            is_unscaled_later = step.grad_scale is not None or any(unscaled > at for unscaled, _ in window.unscales)
            if is_unscaled_later and (scale < 1.0 or clip.limit < sqrt(scale)):
                self._found(window, clip, scale)

    def _found(self, window: Window, clip: Clipped, scale: float) -> None:
        says = said(f"clipping.scaled-{clip.how}", scale=scale, limit=clip.limit)
        if _is_written(clip.limit, scale, len(window.backwards)):
            law, rank, effect = "watch/unscale-before-clip", (window.rank,), _left(clip, scale)
            finding = Finding(law, says, window.index, rank, clip.site, effect, window.optimizer)
            self._findings.add(finding)
            window.broken.append(finding.key)
            return
        row = _row(window, clip)
        self._by_scale.add(row, window, scale, clip.limit, clip.site)
        at = row, window.optimizer, window.rank
        self._open.setdefault(at, Open(says, 0, window.index, clip.site)).count += 1

    def finish(self) -> None:
        for at, one in self._open.items():
            if not self._by_scale.is_wrong(*at):
                self._findings.leave_open(one.says, one.count, one.step, one.site)


def _row(window: Window, clip: Clipped) -> str:
    """Which of `by_scale.ROWS` its limit is in."""
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
