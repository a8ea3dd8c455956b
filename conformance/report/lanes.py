"""A timeline as a table: a column for each rank, and a row for what ranks did at the same point of their work.

Each rank's events stay in order. Ranks that do the same share a row, whichever was first by the clock; so do ranks that
meet in a collective, and the row says so. A rank that does something else gets a separate row, so that it stands out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from conformance.results.records import Moment, Timeline


@dataclass(frozen=True)
class Row:
    """What each rank did, None for one that took no part. ``joined``: they met in a collective."""

    cells: tuple[Moment | None, ...]
    joined: bool

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(cell for cell in self.cells if cell is not None)

    @property
    def time(self) -> float:
        """When the first rank did it, in milliseconds."""
        return min(moment.time for moment in self.moments)

    @property
    def alike(self) -> bool:
        """Whether all ranks did the same, in the same line."""
        return (
            len({(moment.label, moment.where, moment.marked) for moment in self.moments}) == 1
            and None not in self.cells
        )


@dataclass(frozen=True)
class Lanes:
    """The ranks, and the rows in order."""

    ranks: tuple[int, ...]
    rows: tuple[Row, ...]


def lanes(timeline: Timeline) -> Lanes:
    """The timeline as rows."""
    ranks = tuple(dict.fromkeys(moment.rank for moment in timeline.moments))
    return Lanes(ranks, tuple(_rows(timeline, ranks)))


def around_marks(laid: Lanes, near: int = 4) -> list[Row | int]:
    """The rows that are at most ``near`` from one that breaks a law; in place of others, how many they are.

    All rows if none breaks a law.
    """
    marks = [number for number, row in enumerate(laid.rows) if any(moment.marked for moment in row.moments)]
    if not marks:
        return [*laid.rows]
    found: list[Row | int] = []
    for is_near, run in groupby(enumerate(laid.rows), lambda one: any(abs(one[0] - mark) <= near for mark in marks)):
        rows = [row for _, row in run]
        found += rows if is_near or len(rows) == 1 else [len(rows)]
    return found


def _rows(timeline: Timeline, ranks: tuple[int, ...]) -> Iterator[Row]:
    moments = timeline.moments
    joins = {position: join.moments for join in timeline.joins for position in join.moments}
    left = {rank: [position for position, moment in enumerate(moments) if moment.rank == rank] for rank in ranks}
    while any(left.values()):
        heads = {rank: positions[0] for rank, positions in left.items() if positions}
        taken, joined = _next(moments, joins, heads, left)
        for position in taken:
            left[moments[position].rank].pop(0)
        cells = {moments[position].rank: moments[position] for position in taken}
        yield Row(tuple(cells.get(rank) for rank in ranks), joined)


def _next(
    moments: tuple[Moment, ...],
    joins: dict[int, tuple[int, ...]],
    heads: dict[int, int],
    left: dict[int, list[int]],
) -> tuple[tuple[int, ...], bool]:
    """The positions of the moments in the next row, and whether they are a collective in which ranks meet."""
    at_head = set(heads.values())
    waiting = [position for position in at_head if position in joins]
    for position in waiting:
        if at_head.issuperset(joins[position]):
            return joins[position], True
    # Ranks that have not reached the next collective go first.
    free = [position for position in at_head if position not in joins] or waiting
    ordered = sorted(free, key=lambda position: moments[position].time)
    first = next((position for position in ordered if not _comes_elsewhere(position, moments, joins, left)), ordered[0])
    same = tuple(position for position in free if _same(moments[position], moments[first]))
    return same, False


def _comes_elsewhere(
    position: int, moments: tuple[Moment, ...], joins: dict[int, tuple[int, ...]], left: dict[int, list[int]]
) -> bool:
    """Whether another rank does the same later, but before its next collective."""
    for positions in left.values():
        if not positions or position in positions or _same(moments[positions[0]], moments[position]):
            continue
        for later in positions:
            if later in joins:
                break
            if _same(moments[later], moments[position]):
                return True
    return False


def _same(one: Moment, other: Moment) -> bool:
    return one.event == other.event and one.where == other.where and one.micro_batch == other.micro_batch
