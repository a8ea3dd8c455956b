"""Forwards that are of no window though gradients flow through them, as in an evaluation that goes backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import chain

from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.position import MicroBatches, Rows
from conformance.trace.hindsight.training import Line, forwarded


def beside(
    windows: Sequence[MicroBatches], together: Sequence[Counter[int]], lines: Sequence[Line], trains: Set[int]
) -> set[int]:
    """The forwards that come before those of a window, where all steps end with the rows that are planned for one.

    There are none if they have only rows that the ranks read ``together`` in the window that follows: these may have
    been read for another rank.
    """
    if not windows:
        return set()
    rows_of, longest = forwarded(lines), max(map(len, windows))
    found, is_beyond, at = set[int](), False, 0
    for stretch in stretches(lines, trains):
        others, is_open = stretch.forwards, True
        while others and is_open and at < len(windows):
            size = None if stretch.end is None else _size([rows_of[number] for number in reversed(others)], windows[at])
            if size is not None:
                others, is_open = others[:-size], False
            elif (size := _size([rows_of[number] for number in others], windows[at])) is not None:
                # No step ends it.
                others = others[size:]
            elif len(windows[at]) == longest:
                return found if is_beyond and stretch.end is None else set()
            at += 1
        if others and is_open and stretch.end is not None:
            return set()
        found.update(others)
        is_beyond |= not Counter(chain.from_iterable(rows_of[number] for number in others)) <= together[at - 1]
    return found if is_beyond else set()


def _size(forwards: Iterable[Rows], window: MicroBatches) -> int | None:
    """How many of the first forwards have all rows of a window, and no others; None if none have."""
    left = Counter[int | None](chain.from_iterable(window))
    for number, rows in enumerate(forwards, start=1):
        if not rows or not Counter(rows) <= left:
            return None
        left -= Counter(rows)
        if not left:
            return number
    return None
