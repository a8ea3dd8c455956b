"""The calls of a rank that wait for the next step of any optimizer that they concern."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from operator import itemgetter
from typing import TypeAlias, TypeVar

from conformance.watch import records

_R = TypeVar("_R", bound=records.Record)
_Placed: TypeAlias = list[tuple[int, _R]]
"""Records, each with its place in the stream, in their order."""

_MOST = 4096
_MOST_MOMENTS = 64
_SHOWN = (
    records.Entered,
    records.Backward,
    records.Cleared,
    records.Clipped,
    records.Unscaled,
    records.Updated,
    records.Skipped,
    records.Scheduled,
    records.Stepped,
)
"""What a picture of a window shows."""


class Log:
    """In bounded memory: the oldest calls are forgotten first."""

    def __init__(self) -> None:
        self._clips: _Placed[records.Clipped] = []
        self._idle: _Placed[records.Clipped] = []
        self._unscales: _Placed[records.Unscaled] = []
        self._schedules: _Placed[records.Scheduled] = []
        self._limits: _Placed[records.Limited] = []
        self._captured: _Placed[records.Captured] = []
        self._moments: _Placed[records.Record] = []

    def keep(self, at: int, record: records.Record) -> None:
        """What is of no kind that waits is left."""
        if isinstance(record, _SHOWN):
            _keep(self._moments, at, record)
        match record:
            case records.Clipped():
                _keep(self._clips, at, record)
            case records.Unscaled():
                _keep(self._unscales, at, record)
            case records.Scheduled():
                _keep(self._schedules, at, record)
            case records.Limited():
                _keep(self._limits, at, record)
            case records.Captured():
                _keep(self._captured, at, record)

    def keep_idle(self, at: int, clip: records.Clipped) -> None:
        """One that was given no gradient that a step has not used."""
        _keep(self._idle, at, clip)

    # What came after a place in the stream.

    def clips(self, begin: int, concerned: Set[int]) -> _Placed[records.Clipped]:
        """Those of these parameters, and those that were given nothing."""
        return [(at, one) for at, one in _since(self._clips, begin) if concerned & {*one.parameters} or not one.given]

    def idle(self, begin: int, concerned: Set[int]) -> list[records.Clipped]:
        return [one for _, one in _since(self._idle, begin) if concerned & {*one.parameters}]

    def unscales(self, begin: int, optimizer: int) -> _Placed[records.Unscaled]:
        return [(at, one) for at, one in _since(self._unscales, begin) if one.optimizer == optimizer]

    def schedules(self, begin: int, optimizer: int) -> _Placed[records.Scheduled]:
        return [(at, one) for at, one in _since(self._schedules, begin) if one.optimizer == optimizer]

    def limits(self, begin: int, concerned: Set[int]) -> _Placed[records.Limited]:
        return [(at, one) for at, one in _since(self._limits, begin) if concerned & {*one.parameters}]

    def captures(self, begin: int, concerned: Set[int]) -> bool:
        return any(concerned & {*one.parameters} for _, one in _since(self._captured, begin))

    def moments(self, begin: int) -> tuple[list[records.Record], int]:
        """For a picture: the last ones, and how many there were before them."""
        found = _since(self._moments, begin)
        return [one for _, one in found[-_MOST_MOMENTS:]], max(0, len(found) - _MOST_MOMENTS)

    def forget(self, oldest: int) -> None:
        """All up to this place."""
        del self._clips[: _place(self._clips, oldest)]
        del self._idle[: _place(self._idle, oldest)]
        del self._unscales[: _place(self._unscales, oldest)]
        del self._schedules[: _place(self._schedules, oldest)]
        del self._limits[: _place(self._limits, oldest)]
        del self._captured[: _place(self._captured, oldest)]
        del self._moments[: _place(self._moments, oldest)]


def _keep(where: _Placed[_R], at: int, record: _R) -> None:
    where.append((at, record))
    del where[:-_MOST]


def _since(where: _Placed[_R], begin: int) -> _Placed[_R]:
    return where[_place(where, begin) :]


def _place(where: _Placed[_R], at: int) -> int:
    """How many of them came up to there."""
    return bisect_right(where, at, key=itemgetter(0))
