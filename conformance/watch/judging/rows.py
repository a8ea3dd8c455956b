"""The rows that a rank has read, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

_FEWEST, _MOST = 16, 2048


class Rows:
    """Fingerprints: all of few; of many every second, fourth ..., chosen by the fingerprint itself, so that two ranks
    keep the same ones of what both have read."""

    def __init__(self) -> None:
        self._every = 1
        self._kept: set[int] = set()

    def add(self, rows: Iterable[int]) -> bool:
        """Whether all of them are new, as far as is known; else nothing is added."""
        kept = [row for row in rows if row % self._every == 0]
        if len({*kept}) < len(kept) or not self._kept.isdisjoint(kept):
            return False
        self._kept.update(kept)
        while len(self._kept) > _MOST:
            self._every *= 2
            self._kept = self._of(self._every)
        return True

    def shared(self, other: Rows) -> float:
        """The share of rows that both have, of those that the one with fewer has; 0 if these are too few to say."""
        every = max(self._every, other._every)
        own, theirs = self._of(every), other._of(every)
        fewer = min(len(own), len(theirs))
        return len(own & theirs) / fewer if fewer >= _FEWEST else 0.0

    def _of(self, every: int) -> set[int]:
        return {row for row in self._kept if row % every == 0}
