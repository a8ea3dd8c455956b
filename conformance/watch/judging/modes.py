"""Are gradients of an evaluation in the steps that follow it?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

MIXED = "some steps, and not others, also use gradients that were computed in evaluation mode"


_SEVERAL = 2
"""Windows."""


@dataclass
class _Optimizer:
    """mixed: how many windows have passes in evaluation mode, and others in training mode. others: how many have none
    in evaluation mode. moved, again: how many of those that are mixed begin with an evaluation, and go on at other
    weights; or with one of what the window before has trained on, and not this one. first: of those that are mixed.
    fed: what the window before has trained on."""

    mixed: int = 0
    others: int = 0
    moved: int = 0
    again: int = 0
    first: tuple[Window, int] | None = None
    fed: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def is_now_and_then(self) -> bool:
        return self.others >= self.mixed > 0

    @property
    def what(self) -> str | None:
        """What the evaluations are known to be; None without a proof."""
        if not self.is_now_and_then or self.mixed < _SEVERAL:
            return None
        if self.moved == self.mixed:
            return "at other weights"
        return "of what the step before had used" if self.again == self.mixed else None


class Modes:
    """Of the processes that train together.

    A script may train in evaluation mode, for the sake of frozen statistics, and then it does in each window. What is
    backpropagated in some windows alone may be a validation, or have been seen between the steps, as for attributions,
    attacks or norms, and is to be cleared then; or it is a penalty that comes now and then. If it comes first, and the
    weights are others by the first pass in training mode, each time, as where an average is put in their place for an
    evaluation, it is no penalty: that would be one on these weights. Nor is it if it is of what was trained on in the
    step before, and that step is over."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Optimizer] = defaultdict(_Optimizer)

    def feed(self, windows: Sequence[Window]) -> None:
        """A step that is known to use all passes."""
        for window in windows:
            if window.step is None or window.step.closure or not window.backwards:
                continue
            of = self._of[window.optimizer, window.rank]
            modes = [window.backwards[number].evaluates for number in sorted(window.backwards)]
            evaluations = sum(modes)
            if not 0 < evaluations < len(modes):
                of.others += not evaluations
                of.fed = window.fed
                continue
            of.mixed += 1
            passes = [window.backwards[number] for number in sorted(window.backwards)]
            if not any(modes[evaluations:]):
                of.moved += window.version(passes[evaluations - 1]) != window.version(passes[evaluations])
                rows = {tuple(one.evaluated) for one in passes[:evaluations]}
                of.again += rows <= of.fed - window.fed
            of.fed = window.fed
            if of.first is None:
                of.first = window, evaluations
                self._findings.show(_finding(window, evaluations, "").key, windows)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen, if that ended now."""
        return any(of.what is not None for of in self._of.values())

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.what is not None:
                self._findings.add(_finding(*of.first, of.what), count=of.mixed)
            elif of.mixed and of.others:
                self._findings.undecided(MIXED, of.mixed)
            elif of.mixed:
                self._findings.note("each step also uses gradients that were computed in evaluation mode")


def _finding(window: Window, evaluations: int, what: str) -> Finding:
    passes = sorted(window.backwards)
    says = f"the step also uses gradients that were computed in evaluation mode, {what}, and not cleared"
    effect = f"{evaluations} of {len(passes)} backward passes in the update are of an evaluation"
    of = frozenset((window.rank, number) for number in passes[:evaluations])
    rank = (window.rank,)
    return Finding("watch/cleared", says, window.index, rank, window.site, effect, window.optimizer, of)
