"""Does a step now and then use what was backpropagated for another purpose, between the steps?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch import records
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.multiplied import factor_of
from conformance.watch.judging.windows import Window

LEFT = (
    "some steps, and not others, also use gradients that a backward pass in another line had left before: a "
    "`zero_grad` may be missing after it"
)

TAKEN = (
    "steps also use gradients of a backward pass that another optimizer has stepped on before, as of a loss that goes "
    "through both models: a `zero_grad` may be missing between"
)

MORE = (
    "most windows have one backward pass, and some add up several of the same line, which nothing divides: a "
    "`zero_grad` may be missing where a step is left out"
)

_SEVERAL = 2
"""Windows."""

_MOSTLY = 0.6
"""Of all windows."""

_MOST = 16
"""Factors of losses. They are known to so many digits."""

_DIGITS = 6


@dataclass
class _Optimizer:
    """counts: how many windows begin and end with a pass in these lines. in_turn: how many of them follow one like it.
    began: those of the first window; last: those of the last. taken: how many windows have a pass that another
    optimizer has used, and then one that is none of its. alone: how many have one pass; factors: of their losses. more:
    how many have several of one line, each with a factor of those."""

    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    in_turn: Counter[tuple[int, int]] = field(default_factory=Counter)
    began: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    taken: int = 0
    alone: int = 0
    factors: set[float] = field(default_factory=set)
    more: int = 0

    @property
    def left(self) -> int:
        """How many windows begin with a pass in another line than most do, or than the first one does alone."""
        [((first, last), most)] = self.counts.most_common(1)
        if first != last and self.began == (last, last) and self.counts.total() == most + 1 > _SEVERAL:
            return most
        others = [lines for lines in self.counts if lines != (first, last) and lines[1] == last]
        found = sum(self.counts[lines] for lines in others)
        return found if first == last and found <= most and not any(self.in_turn[lines] for lines in others) else 0


class Leftovers:
    """Of the processes that train together.

    What is tried, validated or measured between two steps goes backward in a line of its own, and is to be cleared. A
    penalty that comes now and then looks the same, but for one that follows its loss. A term that begins later in a run
    comes in each window then. What each step leaves for the next one is in all windows but the first."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Optimizer] = defaultdict(_Optimizer)

    def feed(self, windows: Sequence[Window]) -> None:
        """A step that is known to use all passes."""
        for window in windows:
            if window.step is None or window.step.closure or not window.backwards:
                continue
            passes = [window.backwards[number] for number in sorted(window.backwards)]
            if passes[0].evaluates:
                # See `modes.py`.
                continue
            of = self._of[window.optimizer, window.rank]
            of.taken += _are_taken(window, passes)
            factors = {round(factor_of(one), _DIGITS) for one in passes}
            if len(passes) == 1:
                of.alone += 1
                if len(of.factors) < _MOST:
                    of.factors |= factors
            else:
                of.more += len({one.calls for one in passes}) == 1 and factors <= of.factors
            lines = passes[0].calls, passes[-1].calls
            of.counts[lines] += 1
            of.in_turn[lines] += lines == of.last
            of.began, of.last = of.began or lines, lines

    def finish(self) -> None:
        for of in self._of.values():
            if left := of.left:
                self._findings.undecided(LEFT, left)
            if of.taken:
                self._findings.undecided(TAKEN, of.taken)
            if of.alone > _MOSTLY * of.counts.total() and of.more:
                self._findings.undecided(MORE, of.more)


def _are_taken(window: Window, passes: Sequence[records.Backward]) -> bool:
    """Whether another optimizer has stepped on one of its passes, and not on the last one, which is none of its."""
    last = window.reached.get(passes[-1].backward, set())
    others = {str(other) for one in passes[:-1] for other in window.users.get(one.backward, ())}
    return not others <= last
