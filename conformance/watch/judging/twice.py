"""Does one loss go backward twice from one forward, and does the step have both?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.watch.judging.case import Together
from conformance.watch.judging.findings import Finding
from conformance.watch.judging.windows import Window
from conformance.watch.records import Backward, Entered
from conformance.watch.sizes import UNREAD

_MANY_ELEMENTS = 64
"""A gradient of fewer numbers may be another one's by chance."""


def judge(together: Together, window: Window) -> Iterator[Finding]:
    """A step that uses both in full, so that nothing divides them by two."""
    twice = _twice(window)
    if twice and {*together.kappas.get(window.rank, ())} in ({1.0}, {float(together.ranks)}):
        says = "the same loss goes backward twice, from one forward"
        effect = f"the gradients of {len(twice)} of {len(window.backwards)} backward passes are added up once more"
        site = twice[0].site
        yield Finding("watch/backward-once", says, window.index, (window.rank,), site, effect, window.optimizer)


def _twice(window: Window) -> list[Backward]:
    """The backward passes that give every parameter, bit by bit, what the one before did, with no forward in between.

    Two losses of one forward have different gradients, or they are one loss, which a script that wants it to count
    twice multiplies. Made-up batches may be equal; each has a forward of its own."""
    if window.cut:
        return []
    calls = [one for one in window.moments if isinstance(one, (Entered, Backward))]
    found = []
    for entered, first, second in zip(calls, calls[1:], calls[2:], strict=False):
        if (
            isinstance(entered, Entered)
            and isinstance(first, Backward)
            and isinstance(second, Backward)
            and not second.evaluates
            and not second.batches
            and _are_equal(window, first.backward, second.backward)
        ):
            found.append(second)
    return found


def _are_equal(window: Window, first: int, second: int) -> bool:
    elements = 0
    for number, contributions in window.new.items():
        of = {one.backward: one.sketch for one in contributions}
        if (first in of) != (second in of):
            return False
        if first in of and window.samples.get(number) != UNREAD:
            if not np.array_equal(of[first], of[second]):
                return False
            elements += window.sizes.get(number, 1) if of[first][..., 2].any() else 0
    return elements >= _MANY_ELEMENTS
