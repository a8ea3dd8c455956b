"""States that steps use backward passes of another line or mode, and detects those that an evaluation has left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.kinds import kinds
from conformance.watch.judging.multiplied import factor_of
from conformance.watch.judging.windows import Window

_SEVERAL = 2
"""Windows that begin with an evaluation."""


@dataclass
class _Of:
    """An optimizer of a rank. ends: by the line that windows end with, evaluations aside, how many there are.
    began: how many of them begin in another line, or have an evaluation. lacks: the lines whose first window does not.
    taken: how many windows have a pass that another optimizer has stepped on. alone: how many have one pass.
    factor: of the first one's loss. more: how many windows have several passes of one line, each with this factor.
    first: the step that uses another pass, and where that is.
    evaluations: how many windows begin with some. at_others, of_used: how many of these are at weights that the
    training does not see, or of what the window before has trained on. fed: what that is. evaluated: the first one.
    """

    steps: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    began: Counter[int] = field(default_factory=Counter)
    lacks: set[int] = field(default_factory=set)
    taken: int = 0
    alone: int = 0
    factor: float | None = None
    more: int = 0
    first: dict[str, tuple[int, records.Site]] = field(default_factory=dict)
    evaluations: int = 0
    at_others: int = 0
    of_used: int = 0
    fed: set[tuple[int, ...]] = field(default_factory=set)
    evaluated: Finding | None = None

    @property
    def others(self) -> tuple[str, int]:
        """Why some steps use other passes than most do, and how many: few, or all but the first of a run, which each
        take up what the one before has left."""
        few = 0
        for line, count in self.began.items():
            is_rest = count == self.ends[line] - 1 and line in self.lacks
            few += count if 2 * count <= self.ends[line] or is_rest else 0
        more = self.more if 2 * self.alone > self.steps else 0
        return next(((why, n) for why, n in (("began", few), ("taken", self.taken), ("more", more)) if n), ("", 0))

    @property
    def is_left(self) -> bool:
        """Whether what the evaluations have left is known not to belong to the steps: a penalty that comes now and then
        is at the weights that are trained, of what the window trains on."""
        is_seldom = self.steps >= 2 * self.evaluations >= 2 * _SEVERAL
        return is_seldom and self.evaluations in (self.at_others, self.of_used)

    def note(self, why: str, window: Window, backward: records.Backward) -> None:
        self.first.setdefault(why, (window.index, backward.site))


class OtherPasses:
    """Sees the steps of all ranks that are known to use all their passes."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    @property
    def accuses(self) -> bool:
        return any(of.is_left for of in self._of.values())

    def feed(self, windows: Sequence[Window]) -> None:
        for window in windows:
            if window.step is not None and not window.step.closure and window.backwards:
                of = self._of[window.optimizer, window.rank]
                _see(of, window)
                is_first = of.evaluated is None
                _see_evaluations(of, window)
                if is_first and of.evaluated is not None:
                    self._findings.show(of.evaluated.key, windows)

    def finish(self) -> None:
        for of in self._of.values():
            why, count = of.others
            if of.is_left and of.evaluated is not None:
                self._findings.add(of.evaluated, count=of.evaluations)
            elif count:
                step, site = of.first[why]
                at = "" if site is None else f"{site[0]}:{site[1]}"
                says = said("clearing.other-passes", count=count, steps=of.steps, at=at)
                self._findings.leave_open(says, count, step, site)


def _see(of: _Of, window: Window) -> None:
    passes = [window.backwards[number] for number in sorted(window.backwards)]
    first = passes[0]
    last = next((one for one in reversed(passes) if not one.evaluates), passes[-1])
    evaluation = next((one for one in passes if one.evaluates != last.evaluates), None)
    of.steps += 1
    of.ends[last.calls] += 1
    is_other = first.calls != last.calls and len(kinds([window])) > 1
    if evaluation is not None or is_other:
        of.began[last.calls] += 1
        of.note("began", window, evaluation or first)
    elif of.ends[last.calls] == 1:
        of.lacks.add(last.calls)
    if _are_taken(window, passes):
        of.taken += 1
        of.note("taken", window, first)
    if len(passes) == 1:
        of.alone += 1
        of.factor = factor_of(first) if of.factor is None else of.factor
    elif of.factor is not None and all(
        one.calls == first.calls and isclose(factor_of(one), of.factor, rel_tol=1e-6) for one in passes
    ):
        of.more += 1
        of.note("more", window, first)


def _are_taken(window: Window, passes: Sequence[records.Backward]) -> bool:
    """Whether another optimizer has stepped on one of its passes, and has no part in the last one."""
    last = window.reached.get(passes[-1].backward, set())
    others = {str(other) for one in passes[:-1] for other in window.users.get(one.backward, ())}
    return not others <= last


def _see_evaluations(of: _Of, window: Window) -> None:
    passes = [window.backwards[number] for number in sorted(window.backwards)]
    evaluations = [one for one in passes if one.evaluates]
    rest = passes[len(evaluations) :]
    if evaluations and rest and not any(one.evaluates for one in rest):
        of.evaluations += 1
        of.at_others += window.version(evaluations[-1]) != window.version(rest[0])
        of.of_used += {tuple(one.evaluated) for one in evaluations} <= of.fed - window.fed
        says = said("passes.evaluated")
        effect = said("passes.evaluated-of", passes=len(evaluations), all=len(passes))
        of_evaluation = frozenset((window.rank, one.backward) for one in evaluations)
        found = (window.index, (window.rank,), window.site, effect, window.optimizer, of_evaluation)
        of.evaluated = of.evaluated or Finding("watch/cleared", says, *found)
    of.fed = window.fed
