"""Keeps the calls of a rank until the next step of each optimizer that they concern."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import TypeVar

from conformance.watch import records

_R = TypeVar("_R", bound=records.Record)

_MOST = 2**14
_MOST_MOMENTS = 64
_SHOWN = {
    records.Entered,
    records.Backward,
    records.Cleared,
    records.Clipped,
    records.Unscaled,
    records.Updated,
    records.Skipped,
    records.Scheduled,
    records.Stepped,
}
"""The calls in a report's picture of a window."""
_KEPT = {*_SHOWN, records.Limited, records.Captured}


class Log:
    """Calls and their places in the stream, in bounded memory: drops the oldest first."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, records.Record]] = []

    def keep(self, at: int, record: records.Record) -> None:
        if type(record) in _KEPT:
            self._calls.append((at, record))
            del self._calls[:-_MOST]

    def since(self, begin: int) -> Calls:
        """The calls after a place in the stream."""
        return Calls(self._calls[self._place(begin) :])

    def forget(self, oldest: int) -> None:
        """Drops the calls up to this place."""
        del self._calls[: self._place(oldest)]

    def _place(self, at: int) -> int:
        """The number of calls up to this place."""
        return bisect_right(self._calls, at, key=itemgetter(0))


class Calls:
    """A selection of calls, in order."""

    def __init__(self, calls: list[tuple[int, records.Record]]) -> None:
        self._calls = calls
        self._kinds = {type(one) for _, one in calls}

    def of(self, kind: type[_R], concerns: Callable[[_R], bool]) -> list[tuple[int, _R]]:
        if kind not in self._kinds:
            return []
        return [(at, one) for at, one in self._calls if isinstance(one, kind) and concerns(one)]

    def moments(self) -> tuple[list[records.Record], int]:
        """The last calls for a picture, and the number of those before them."""
        shown: list[records.Record] = [one for _, one in self._calls if type(one) in _SHOWN]
        return shown[-_MOST_MOMENTS:], max(0, len(shown) - _MOST_MOMENTS)
