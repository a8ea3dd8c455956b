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
    again: those read in several epochs."""

    def __init__(self) -> None:
        self.again: set[int] = set()
        self._every, self._batches = 1, 0
        self._kept: dict[int, int] = {}

    def are_new(self, rows: Iterable[int]) -> bool:
        """Whether no row was read before, as far as is known."""
        chosen = self._chosen(rows)
        return len({*chosen}) == len(chosen) and self._kept.keys().isdisjoint(chosen)

    def add(self, rows: Iterable[int], epoch: int = 0) -> None:
        chosen = self._chosen(rows)
        self.again |= {row for row in chosen if self._kept.get(row, epoch) != epoch}
        self._kept.update(dict.fromkeys(chosen, epoch))
        self._batches += 1
        while len(self._kept) > _MOST:
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
        rows = own * theirs / common
        # Pairs of rows from different batches, which could be the same row.
        pairs = min(own**2 * (1 - 1 / self._batches), theirs**2 * (1 - 1 / other._batches)) / 2
        return common / min(own, theirs) if pairs >= _COINCIDENCES * rows else 0.0

    def _chosen(self, rows: Iterable[int]) -> list[int]:
        return [row for row in rows if row % self._every == 0]
