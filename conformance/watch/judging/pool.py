"""Whether micro-batches that no loader gave are drawn from one set."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MOST = 8192
"""Rows."""


class Pool:
    """Rows, by which of them came in one micro-batch.

    Rows of one task, group or data set never come with those of another. In one set that is shuffled again and again,
    all are soon linked by others. (Union-find.)"""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def add(self, rows: Sequence[int]) -> None:
        """A micro-batch."""
        known = [row for row in rows if row in self._above or len(self._above) < _MOST]
        for row in known:
            self._above.setdefault(row, row)
        for row in known[1:]:
            self._above[self._top(row)] = self._top(known[0])

    def are_linked(self, micro_batches: Collection[Sequence[int]]) -> bool:
        """Whether all of these, none of which is like another one, are."""
        firsts = {rows[0] for rows in micro_batches if rows}
        tops = {self._top(row) if row in self._above else None for row in firsts}
        return len(firsts) == len(micro_batches) > 1 and len(tops) == 1 and None not in tops

    def _top(self, row: int) -> int:
        while (above := self._above[row]) != row:
            self._above[row] = self._above[above]
            row = above
        return row
