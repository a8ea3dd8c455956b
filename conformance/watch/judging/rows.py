"""The rows that a rank has read, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 2048
_COINCIDENCES = 5
"""That none comes has a probability of less than one percent, exp(-5), where so many are expected."""


class Rows:
    """Fingerprints: all of few; of many every second, fourth ..., chosen by the fingerprint itself, so that two ranks
    keep the same ones of what both have read. pairs: of those kept, how many there are of two in different batches,
    which could have been the same row."""

    def __init__(self) -> None:
        self._every = 1
        self._kept: set[int] = set()
        self._pairs = 0.0

    def add(self, rows: Iterable[int]) -> bool:
        """Whether all of them are new, as far as is known; else nothing is added."""
        kept = [row for row in rows if row % self._every == 0]
        if len({*kept}) < len(kept) or not self._kept.isdisjoint(kept):
            return False
        self._pairs += len(self._kept) * len(kept)
        self._kept.update(kept)
        while len(self._kept) > _MOST:
            self._pairs *= self._of_pairs(2 * self._every)
            self._every *= 2
            self._kept = self._of(self._every)
        return True

    def shared(self, other: Rows) -> float:
        """The share of rows that both have, of those that the one with fewer has.

        It is 0 as well if each batch may be drawn from all rows anew: from a few rows, two ranks draw many of the same,
        and so does one rank. Among so many rows as there seem to be (Lincoln and Petersen's estimate), both would have
        drawn some row again by now."""
        every = max(self._every, other._every)
        own, theirs = self._of(every), other._of(every)
        both = len(own & theirs)
        if not both:
            return 0.0
        rows = len(own) * len(theirs) / both
        pairs = min(one._pairs * one._of_pairs(every) for one in (self, other))
        return both / min(len(own), len(theirs)) if pairs / rows >= _COINCIDENCES else 0.0

    def _of_pairs(self, every: int) -> float:
        """The share of pairs that are left if so many fewer rows are kept."""
        return (self._every / every) ** 2

    def _of(self, every: int) -> set[int]:
        return {row for row in self._kept if row % every == 0}
