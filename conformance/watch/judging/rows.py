"""The rows that a rank has read, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 2048
_COINCIDENCES = 5
"""Ranks that draw at random with replacement read no row twice with a probability of exp(-5), under one percent, where
so many repeats are expected."""


class Rows:
    """Fingerprints of rows, each with the epoch of its last reading.

    Keeps all of few; of many every second, fourth, ..., chosen by the fingerprint, so two ranks keep the same ones.
    again: those read in several epochs. pairs: how many pairs of kept rows, from different batches, could have been the
    same row."""

    def __init__(self) -> None:
        self.again: set[int] = set()
        self._every = 1
        self._kept: dict[int, int] = {}
        self._pairs = 0.0

    def are_new(self, rows: Iterable[int]) -> bool:
        """Whether no row was read before, as far as is known."""
        chosen = self._chosen(rows)
        return len({*chosen}) == len(chosen) and self._kept.keys().isdisjoint(chosen)

    def add(self, rows: Iterable[int], epoch: int = 0) -> None:
        chosen = self._chosen(rows)
        self.again |= {row for row in chosen if self._kept.get(row, epoch) != epoch}
        self._pairs += len(self._kept) * len(chosen)
        self._kept.update(dict.fromkeys(chosen, epoch))
        while len(self._kept) > _MOST:
            self._pairs = self._pairs_at(2 * self._every)
            self._every *= 2
            self._kept = {row: self._kept[row] for row in self._chosen(self._kept)}
            self.again &= self._kept.keys()

    def common(self, other: Rows) -> set[int]:
        """The rows that both have read, of those that both keep."""
        return self._kept.keys() & other._kept.keys()

    def shared(self, other: Rows) -> float:
        """The share of common rows, of the rank that has read fewer.

        It is 0 if each batch may be drawn from all rows, with replacement: ranks then have rows in common by chance.
        The ranks' overlap tells how many rows there are (Lincoln and Petersen's estimate). Among so few, a rank that
        draws with replacement would have read some row twice by now."""
        common = len(self.common(other))
        if not common:
            return 0.0
        every = max(self._every, other._every)
        own, theirs = (sum(row % every == 0 for row in one._kept) for one in (self, other))
        pairs = min(one._pairs_at(every) for one in (self, other))
        return common / min(own, theirs) if pairs * common >= _COINCIDENCES * own * theirs else 0.0

    def _chosen(self, rows: Iterable[int]) -> list[int]:
        return [row for row in rows if row % self._every == 0]

    def _pairs_at(self, every: int) -> float:
        """How many pairs are left if so many fewer rows are kept."""
        return self._pairs * (self._every / every) ** 2
