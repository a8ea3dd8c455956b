"""Detects steps on gradients that are not finite."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.windows import Window

_FAR = 1e3
"""A test of learning rates goes so far, from its first rate to its last."""

_SEVERAL = 3
"""Steps on finite gradients. One may go where the weights that are lost do not count."""


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


class Finite:
    """Judges the steps of all ranks.

    A step makes NaN of weights for good. A script that goes on with finite gradients has put the weights back, or
    trains another model, so the steps before were a trial; so is a test of rates, which only grow. restored: by rank
    and parameter that had gradients which were not finite, how many finite ones it had since.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, dict[int, _Of]] = defaultdict(dict)
        self._restored: dict[int, Counter[int]] = defaultdict(Counter)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.first and not self._is_trial(rank, of) for rank in self._of for of in self._of[rank].values())

    def judge(self, window: Window) -> None:
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
        says = said("finite.step")
        effect = said("finite.of", wrong=len(infinite), all=len(window.step.parameters))
        rank = (window.rank,)
        found = Finding("watch/finite", says, window.index, rank, window.site, effect, window.optimizer)
        of.infinite |= infinite
        for number in of.infinite:
            restored[number] = 0
        window.broken.append(found.key)
        of.first, of.count = of.first or found, of.count + 1

    def finish(self) -> None:
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
