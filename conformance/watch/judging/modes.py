"""Are gradients of an evaluation in the steps that follow it?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window

_OFTEN = 2


@dataclass
class _Optimizer:
    """mixed: how many windows begin with passes in evaluation mode, and go on in training mode. others: how many do
    not. first: the first of the former."""

    mixed: int = 0
    others: int = 0
    first: Finding | None = None


class Modes:
    """Of the processes that train together.

    A script may train in evaluation mode, for the sake of frozen statistics, and then it does in each window. What is
    backpropagated in some windows alone, after a step and before the first pass in training mode, was looked at between
    the steps, as is done for attributions, attacks or norms, and is to be cleared."""

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
            if not 0 < evaluations < len(modes) or any(modes[evaluations:]):
                of.others += not evaluations
                continue
            of.mixed += 1
            if of.first is None:
                [number, *_] = sorted(window.backwards)
                says = f"gradients of {evaluations} backward passes in evaluation mode are left in the step"
                effect = f"{evaluations} of {len(modes)} backward passes of the step are of an evaluation"
                site, passes = window.backwards[number].site, frozenset({(window.rank, number)})
                of.first = Finding(
                    "watch/cleared", says, window.index, (window.rank,), site, effect, window.optimizer, passes
                )
                self._findings.show(of.first.key, windows)

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.mixed >= _OFTEN and of.others >= of.mixed:
                self._findings.add(of.first, count=of.mixed)
            elif of.first is not None:
                self._findings.note(of.first.says)
