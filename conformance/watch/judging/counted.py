"""Are sums over targets divided by how many these are, in each step?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import inf, isclose

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.kinds import kinds
from conformance.watch.judging.multiplied import factor_of, weight_of

_NEAR = 1e-4
_SEVERAL = 3


@dataclass
class _Steps:
    """Of an optimizer. right: in how many the targets weigh 1 together, as in a mean; more, less: in how many they
    weigh more or less. least, most: what they weigh then. divisors: of these, up to a few."""

    all: int = 0
    right: int = 0
    more: int = 0
    less: int = 0
    least: float = inf
    most: float = 0.0
    divisors: set[float] = field(default_factory=set)

    def __str__(self) -> str:
        low, high = f"{self.least:.3g}", f"{self.most:.3g}"
        return f"{low} times as much" if low == high else f"{low} to {high} times as much"


class Counted:
    """Of the processes that train together."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[int, _Steps] = defaultdict(_Steps)

    def judge(self, together: Together) -> None:
        """A step whose gradients are conserved."""
        here = together.here
        # A batch that is made up counts nothing.
        passes = [one for window in here for one in window.backwards.values() if factor_of(one)]
        kappas = {kappa for of_rank in together.kappas.values() for kappa in of_rank}
        if not passes or len(kappas) != 1 or together.is_joined or any(not one.summed or one.of_any for one in passes):
            return
        weights = [weight_of(window) or 0.0 for window in here]
        # Losses of several lines are several losses.
        if not all(weights) or len(kinds(here)) > 1:
            return
        total = sum(weights) * kappas.pop() / together.ranks
        of = self._of[here[0].optimizer]
        of.all += 1
        if isclose(total, 1, rel_tol=_NEAR):
            of.right += 1
            return
        of.more, of.less = of.more + (total > 1), of.less + (total < 1)
        of.least, of.most = min(of.least, total), max(of.most, total)
        if len(of.divisors) < _SEVERAL:
            of.divisors.add(1 / factor_of(passes[0]))

    def finish(self) -> None:
        for of in self._of.values():
            if of.right > of.all / 2 and of.more:
                self._findings.undecided(
                    f"sums over targets are divided by how many these are, and in other steps weigh {of}",
                    of.more,
                )
            elif of.right > of.all / 2 and of.less:
                self._findings.note(f"sums over fewer targets have the divisor of the others: they weigh {of}")
            elif len(of.divisors) == _SEVERAL:
                self._findings.note(
                    "sums over targets are divided by numbers that change, and that are not how many targets there "
                    f"are: they weigh {of} as in a mean"
                )
