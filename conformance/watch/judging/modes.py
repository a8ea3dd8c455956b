"""Are gradients of an evaluation in the steps that follow it?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.watch.judging.findings import Findings
from conformance.watch.judging.windows import Window

MIXED = "some steps, and not others, also use gradients that were computed in evaluation mode"


@dataclass
class _Optimizer:
    """mixed: how many windows have passes in evaluation mode, and others in training mode. others: how many have none
    in evaluation mode."""

    mixed: int = 0
    others: int = 0


class Modes:
    """Of the processes that train together.

    A script may train in evaluation mode, for the sake of frozen statistics, and then it does in each window. What is
    backpropagated in some windows alone may be a validation, or have been seen between the steps, as for attributions,
    attacks or norms, and is to be cleared then; or it is a penalty that comes now and then."""

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
                continue
            of.mixed += 1

    def finish(self) -> None:
        for of in self._of.values():
            if of.mixed and of.others >= of.mixed:
                self._findings.undecided(MIXED, of.mixed)
