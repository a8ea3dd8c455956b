"""Are gradients unscaled before they are clipped?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import isclose, sqrt

from conformance.watch.judging.case import factor_of
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Clipped

_NO_LIMIT = 1e-3 * (1 - 1e-6)
"""Times the loss scale: nobody limits the norm of a model's gradient to less than a thousandth. One that goes by the
size of a layer's weights may be as small for a bias, and so may one of elements."""

_MOST = 64
_SEVERAL = 3
"""Windows with one limit. One that goes by the norms before, such as their median, changes from window to window."""


@dataclass
class _Limit:
    """scales: of the gradients that it was compared with. first: what the first window shows; count: how many do.
    tiny: in how many of these it is smaller than any that somebody sets."""

    scales: set[float] = field(default_factory=set)
    first: Finding | None = None
    count: int = 0
    tiny: int = 0

    @property
    def is_unscaled(self) -> bool:
        return len(self.scales) > 1 or self.tiny >= _SEVERAL


class Unscaling:
    """Of the processes that train together.

    A script may also scale the limit as its gradients are, and divide both later. Such a limit is not far below the
    loss scale, and it changes with it: one that stays the same while the scale changes, or that unscaled gradients are
    compared with, too, is none. Limits are written in few digits: 5 at a scale of 32 is no 0.15625 that was scaled.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, float], _Limit] = defaultdict(_Limit)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.first is not None and of.is_unscaled for of in self._of.values())

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
            of = self._of[window.rank, clip.limit]
            if len(self._of) > _MOST:
                del self._of[next(iter(self._of))]
            if scale == 1.0 or any(unscaled < at for unscaled, _ in window.unscales):
                of.scales.add(1.0)
                continue
            # Without one the script has divided by itself, before or after.
            is_unscaled_later = step.grad_scale is not None or any(unscaled > at for unscaled, _ in window.unscales)
            if is_unscaled_later and (scale < 1.0 or clip.limit < sqrt(scale)):
                of.scales.add(scale)
                self._found(of, window, clip, scale)

    def _found(self, of: _Limit, window: Window, clip: Clipped, scale: float) -> None:
        of_what = "the norm of gradients" if clip.how == "norm" else "elements of gradients"
        says = f"clipping compared {of_what} times {scale:g} with {clip.limit:g}"
        law, effect = "watch/unscale-before-clip", _too_short(clip, scale)
        finding = Finding(law, says, window.index, (window.rank,), clip.site, effect, window.optimizer)
        if _is_written(clip.limit, scale, len(window.backwards)):
            self._findings.add(finding)
            window.broken.append(finding.key)
            return
        of.tiny += clip.how == "norm" and clip.limit < _NO_LIMIT * scale and _is_of_most(window, clip)
        of.first, of.count = of.first or finding, of.count + 1

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.is_unscaled:
                self._findings.add(of.first, count=of.count)
            elif of.first is not None:
                self._findings.undecided(f"{of.first.says}, which may be a limit that is scaled, too", of.count)


def _is_of_most(window: Window, clip: Clipped) -> bool:
    """Whether it clips most of what the step uses, in elements."""
    held = {*clip.parameters}
    return 2 * sum(window.sizes.get(number, 1) for number in held) >= sum(window.sizes.get(n, 1) for n in window.used)


def _is_written(limit: float, scale: float, passes: int) -> bool:
    """Whether somebody wrote down this limit, and not another one that was multiplied by the loss scale: for the whole
    window, or for each of so many micro-batches."""
    return _is_round(limit, 2) and not _is_round(limit / scale, 3) and not _is_round(limit / scale * passes, 2)


def _is_round(number: float, digits: int) -> bool:
    return isclose(float(f"{number:.{digits}g}"), number, rel_tol=1e-9)


def _too_short(clip: Clipped, scale: float) -> str:
    if clip.how != "norm" or not clip.norm:
        return f"what is compared with the limit is {scale:g} times what it should be"
    right = factor_of(replace(clip, norm=clip.norm / scale))
    return f"clipping leaves {factor_of(clip) / right:.3g} of what it should leave of the gradients"
