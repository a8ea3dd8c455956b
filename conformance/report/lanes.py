"""A timeline laid out: a lane a rank, and a row for what ranks did at the same point of their work.

Rows follow the order of each rank. Where ranks do the same, they share a row, whoever was first by the clock; where
they meet in a collective, they share it too, and the row says so. A rank that does something else gets a row of its
own: what differs stands out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from conformance.results.records import Moment, Timeline


@dataclass(frozen=True)
class Row:
    """What the ranks did, None where a rank has no part in it. ``joined``: they met there, in a collective."""

    cells: tuple[Moment | None, ...]
    joined: bool

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(cell for cell in self.cells if cell is not None)

    @property
    def time(self) -> float:
        """When the first of them did it, in milliseconds."""
        return min(moment.time for moment in self.moments)

    @property
    def alike(self) -> bool:
        """All ranks did it, by the same line."""
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


def _rows(timeline: Timeline, ranks: tuple[int, ...]) -> Iterator[Row]:
    moments = timeline.moments
    joins = {place: join.moments for join in timeline.joins for place in join.moments}
    left = {rank: [place for place, moment in enumerate(moments) if moment.rank == rank] for rank in ranks}
    while any(left.values()):
        heads = {rank: places[0] for rank, places in left.items() if places}
        taken, joined = _next(moments, joins, heads, left)
        for place in taken:
            left[moments[place].rank].pop(0)
        cells = {moments[place].rank: moments[place] for place in taken}
        yield Row(tuple(cells.get(rank) for rank in ranks), joined)


def _next(
    moments: tuple[Moment, ...],
    joins: dict[int, tuple[int, ...]],
    heads: dict[int, int],
    left: dict[int, list[int]],
) -> tuple[tuple[int, ...], bool]:
    """The places that make the next row, and whether they are a meeting."""
    at_head = set(heads.values())
    waiting = [place for place in at_head if place in joins]
    for place in waiting:
        if at_head.issuperset(joins[place]):
            return joins[place], True
    # Ranks that still have their way to a meeting go first.
    free = [place for place in at_head if place not in joins] or waiting
    ordered = sorted(free, key=lambda place: moments[place].time)
    first = next((place for place in ordered if not _comes_elsewhere(place, moments, joins, left)), ordered[0])
    same = tuple(place for place in free if _same(moments[place], moments[first]))
    return same, False


def _comes_elsewhere(
    place: int, moments: tuple[Moment, ...], joins: dict[int, tuple[int, ...]], left: dict[int, list[int]]
) -> bool:
    """Whether another rank will do the same before it next meets the others, but does something else first."""
    for places in left.values():
        if not places or place in places or _same(moments[places[0]], moments[place]):
            continue
        for later in places:
            if later in joins:
                break
            if _same(moments[later], moments[place]):
                return True
    return False


def _same(one: Moment, other: Moment) -> bool:
    return one.event == other.event and one.where == other.where and one.micro_batch == other.micro_batch
