"""Are micro-batches that no loader gave drawn from one set?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MOST = 8192
"""Rows."""


class Pool:
    """Groups rows that are linked by micro-batches: rows of one task or data set never come with those of another, but
    in one set that is shuffled again and again, all are soon linked."""

    def __init__(self) -> None:
        self._groups: list[set[int]] = []

    def add(self, rows: Sequence[int]) -> None:
        """Take a micro-batch."""
        joined, others = set[int](), []
        for group in self._groups:
            if group.isdisjoint(rows):
                others.append(group)
            else:
                joined |= group
        if sum(map(len, self._groups)) < _MOST:
            joined |= {*rows}
        self._groups = [*others, joined] if joined else others

    def are_linked(self, micro_batches: Collection[Sequence[int]]) -> bool:
        """Whether all of these, none of which is like another one, are."""
        firsts = {rows[0] for rows in micro_batches if rows}
        are_several = len(firsts) == len(micro_batches) > 1
        return are_several and any(firsts <= group for group in self._groups)
