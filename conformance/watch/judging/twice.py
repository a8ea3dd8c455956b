"""Does one loss go backward twice from one forward, and does the step have both?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.windows import Window
from conformance.watch.records import Backward, Entered
from conformance.watch.sizes import UNREAD

_SEVERAL = 2
"""Windows."""

_MANY_ELEMENTS = 64
"""A gradient of fewer numbers may be another one's by chance."""


@dataclass
class _Of:
    """Of an optimizer on a rank: the first finding, and in how many windows there is one, and there might be."""

    first: Finding | None = None
    count: int = 0
    windows: int = 0


class Twice:
    """Of the processes that train together.

    Two losses of one forward have different gradients, or they are one loss, which a script that wants it to count
    twice multiplies. Losses of two sets of labels, or the same loss the other way round, may have equal gradients: the
    former now and then, where all labels agree, and the latter with another graph."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._of: dict[tuple[int, int], _Of] = defaultdict(_Of)

    @property
    def accuses(self) -> bool:
        """Whether it would accuse the script of what it has seen several times, if that ended now."""
        return any(of.count == of.windows >= _SEVERAL for of in self._of.values())

    def judge(self, together: Together, window: Window) -> None:
        """A step that uses both in full, so that nothing divides them by two."""
        pairs = _pairs(window)
        if not pairs:
            return
        of = self._of[window.optimizer, window.rank]
        of.windows += 1
        in_full = {*together.kappas.get(window.rank, ())} in ({1.0}, {float(together.ranks)})
        if in_full and all(second.is_alike and _are_equal(window, first, second) for first, second in pairs):
            says = "the same loss goes backward twice, from one forward"
            effect = f"the gradients of {len(pairs)} of {len(window.backwards)} backward passes are added up once more"
            site, rank = pairs[0][1].site, (window.rank,)
            found = Finding("watch/backward-once", says, window.index, rank, site, effect, window.optimizer)
            self._findings.show(found.key, together.here)
            of.first, of.count = of.first or found, of.count + 1

    def finish(self) -> None:
        for of in self._of.values():
            if of.first is not None and of.count == of.windows >= _SEVERAL:
                self._findings.add(of.first, count=of.count)
            elif of.first is not None and of.count == of.windows:
                self._findings.undecided("two losses of one forward have the same gradient")


def _pairs(window: Window) -> list[tuple[Backward, Backward]]:
    """The backward passes that come one after the other, with no forward in between. Made-up batches may be equal; each
    has a forward of its own."""
    if window.cut:
        return []
    calls = [one for one in window.moments if isinstance(one, (Entered, Backward))]
    return [
        (first, second)
        for entered, first, second in zip(calls, calls[1:], calls[2:], strict=False)
        if isinstance(entered, Entered)
        and isinstance(first, Backward)
        and isinstance(second, Backward)
        and not second.evaluates
        and not second.batches
    ]


def _are_equal(window: Window, one: Backward, other: Backward) -> bool:
    """Whether every parameter has the same of both, bit by bit."""
    first, second, elements = one.backward, other.backward, 0
    for number, contributions in window.new.items():
        of = {each.backward: each.sketch for each in contributions}
        if (first in of) != (second in of):
            return False
        if first in of and window.samples.get(number) != UNREAD:
            if not np.array_equal(of[first], of[second]):
                return False
            elements += window.sizes.get(number, 1) if of[first][..., 2].any() else 0
    return elements >= _MANY_ELEMENTS
