"""Do the micro-batches of a window differ?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

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
            if window.fed_again and window.fed_again == len(window.backwards) - 1 and _are_equal(window):
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
    """Whether all backward passes give each parameter the same gradient."""
    return all(
        len(of_one) == len(window.backwards) and np.allclose(one.sketch, of_one[0].sketch, rtol=_NEAR, atol=0)
        for of_one in window.new.values()
        for one in of_one
    )
