"""Do the micro-batches of a window differ?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.watch.judging.compared import FEWEST
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.windows import Window

_NEAR = 1e-5


@dataclass
class _Optimizer:
    """alike: windows whose passes are all of the same inputs, and give the same gradients. fed: these inputs, of a
    few."""

    windows: int = 0
    alike: int = 0
    passes: int = 0
    fed: set[tuple[int, ...]] = field(default_factory=set)


class SameInputs:
    """Of the processes that train together.

    A loss of which several samples are drawn, by dropout or noise, has other gradients each time. Inputs that are the
    same in all windows, too, are those of a first try."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Optimizer] = defaultdict(_Optimizer)

    def feed(self, here: Sequence[Window]) -> None:
        for window in here:
            of = self._of[window.optimizer, window.rank]
            of.windows += 1
            is_whole = len(window.inputs) == len(window.backwards) > 1
            if is_whole and len(window.fed) == 1 and _are_equal(window):
                of.alike, of.passes = of.alike + 1, len(window.backwards)
                of.fed |= window.fed if len(of.fed) < FEWEST else set()

    def finish(self) -> None:
        for of in self._of.values():
            if of.alike > of.windows / 2 and len(of.fed) >= FEWEST:
                self._findings.undecided(
                    f"each of the {of.passes} backward passes of a window has the same inputs, and gives the same "
                    "gradients: one would do, or the others should have inputs of their own",
                    of.alike,
                )


def _are_equal(window: Window) -> bool:
    """Whether all backward passes give each parameter the same gradient, and one that is not zero to some."""
    if any(len(of_one) != len(window.backwards) for of_one in window.new.values()):
        return False
    pairs = [(one.sketch, of_one[0].sketch) for of_one in window.new.values() for one in of_one]
    # What gradients come to along a direction may be much less than they are, and its rounding is not.
    are_near = all(abs(one - first).max() <= _NEAR * abs(first).max() for one, first in pairs)
    return are_near and any(first.any() for _, first in pairs)
