"""All that is judged of a loss scale beside the factor of a step."""

from __future__ import annotations

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.own_decay import OwnDecay
from conformance.watch.judging.own_overflow import OwnOverflow
from conformance.watch.judging.own_scale import OwnScale
from conformance.watch.judging.scaled_limits import ScaledLimits
from conformance.watch.judging.unscaling import Unscaling
from conformance.watch.judging.windows import Window


class LossScale:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._unscaling, self._limits = Unscaling(findings), ScaledLimits(findings)
        self._own, self._decay = OwnScale(findings), OwnDecay(findings)
        self._overflow = OwnOverflow(findings)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        of = (self._unscaling, self._limits, self._own, self._decay, self._overflow)
        return any(one.accuses for one in of)

    def judge(self, window: Window) -> None:
        """The window of a rank."""
        self._unscaling.judge(window)
        self._limits.judge(window)

    def judge_step(self, together: Together) -> None:
        """A step of all ranks, whose factors are known."""
        self._own.judge(together)
        self._decay.judge(together)
        self._overflow.judge(together)

    def finish(self) -> None:
        self._unscaling.finish()
        self._limits.finish()
        self._own.finish()
        self._decay.finish()
        self._overflow.finish()
