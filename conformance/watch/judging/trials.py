"""Is a step on gradients that are not finite one of the script's, or of a trial that diverged?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

_FAR = 1e3
"""Between the first rate of a test and the last."""

_SEVERAL = 3
"""Steps on finite gradients. One may go where the weights that are lost do not count."""


@dataclass
class _Of:
    """An optimizer of a rank. begin, end: the first backward pass of its steps, and the last of all before them.
    parameters: those that it steps. first: what is found first, and count: how often. infinite: the parameters whose
    gradients were not finite. rates: the first and the last rate, as long as each step has a larger one than that
    before."""

    begin: int = 0
    end: int = 0
    parameters: set[int] = field(default_factory=set)
    first: Finding | None = None
    count: int = 0
    infinite: set[int] = field(default_factory=set)
    rates: tuple[float, float] | None = (0.0, 0.0)

    def see_rate(self, rate: float) -> None:
        if self.rates is not None:
            first, last = self.rates
            self.rates = (first or rate, rate) if rate > last else None

    @property
    def is_test(self) -> bool:
        """Of rates, which grows until the loss does not get smaller any more."""
        return self.rates is not None and self.rates[1] > _FAR * self.rates[0]


class Trials:
    """Of the processes that train together. lost: by rank, the parameters that have had gradients which are not finite.
    restored: how often those had finite ones again.

    A search goes through several settings, one after the other, each with a model of its own. That one of them diverges
    is what it wants to know, and the next begins anew. A training that goes on has the same parameters, or steps those
    of several models in turns, or its rates do not only grow. If all of these have finite gradients again, the weights
    have been put back, as after the test of learning rates that goes on until the loss is NaN, or to the last
    checkpoint that was good: a step makes NaN of weights for good, and so of all that is computed with them."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, dict[int, _Of]] = defaultdict(dict)
        self._lost: dict[int, set[int]] = defaultdict(set)
        self._restored: dict[int, Counter[int]] = defaultdict(Counter)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.first for rank in self._of for of in self._broken(rank))

    def see(self, window: Window, infinite: Finding | None) -> None:
        """infinite: what it says of a step on gradients that are not finite."""
        begin = min(window.backwards, default=window.clock)
        of = self._of[window.rank].setdefault(window.optimizer, _Of(begin=begin))
        of.end = window.clock
        of.parameters |= set() if window.step is None else {*window.step.parameters}
        if window.step is not None:
            of.see_rate(max((rate for rate in window.step.rates if rate is not None), default=0.0))
        lost = self._lost[window.rank]
        self._restored[window.rank].update(n for n in window.used.keys() & lost if np.isfinite(window.used[n]).all())
        if infinite is not None:
            of.infinite |= {number for number, sketch in window.used.items() if not np.isfinite(sketch).all()}
            lost |= of.infinite
            for number in of.infinite:
                del self._restored[window.rank][number]
            window.broken.append(infinite.key)
            of.first, of.count = of.first or infinite, of.count + 1

    def _broken(self, rank: int) -> list[_Of]:
        """Those of which no other one shows that they are trials, and whose weights are not put back."""
        every, restored = self._of[rank].values(), self._restored[rank]
        return [
            of
            for of in every
            if of.first
            and not of.is_test
            and not any(_are_trials(of, other) for other in every)
            and any(restored[number] < _SEVERAL for number in of.infinite)
        ]

    def finish(self) -> None:
        for rank, by_optimizer in self._of.items():
            broken = self._broken(rank)
            for of in by_optimizer.values():
                if of.first is not None and any(of is one for one in broken):
                    self._findings.add(of.first, count=of.count)
                elif of.first is not None:
                    self._findings.undecided(
                        "gradients of a model are not finite, and others come before or after it, it is put back, or "
                        "its rate only grows: a trial may diverge",
                        of.count,
                    )


def _are_trials(of: _Of, other: _Of) -> bool:
    """Whether one comes after the other, with other parameters, and has only finite gradients."""
    is_apart = other.begin > of.end or other.end < of.begin
    return is_apart and other.first is None and other.parameters.isdisjoint(of.parameters)
