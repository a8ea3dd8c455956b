"""A timeline as a table and as a picture with a lane for each rank.

Each rank's events stay in order. Ranks that do the same share a row, whichever was first; so do ranks that meet in a
collective, and the row says so. A rank that does something else gets a separate row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from conformance.results.result_lines import Finding, Moment, Timeline


@dataclass(frozen=True)
class Row:
    """The event of each rank; None if it took no part. ``joined``: they met in a collective."""

    cells: tuple[Moment | None, ...]
    joined: bool

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(cell for cell in self.cells if cell is not None)

    @property
    def alike(self) -> bool:
        """Whether all ranks did the same on the same line."""
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
    """The rows within ``near`` of one that breaks a law, with counts instead of the others; all if none does."""
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
    moments: tuple[Moment, ...], joins: dict[int, tuple[int, ...]], heads: dict[int, int], left: dict[int, list[int]]
) -> tuple[tuple[int, ...], bool]:
    """The positions of the moments in the next row, and whether ranks meet in it."""
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
    """Whether another rank does the same later, before its next collective."""
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


_KINDS = {"forward": "s0", "backward": "s1", "collective": "s2", "step": "s3"}
"""The colour of each kind of event."""


def broken_at(findings: Sequence[Finding]) -> dict[tuple[object, ...], str]:
    """The law that each marked moment of a timeline breaks, by `key`."""
    return {key(moment): finding.law for finding in reversed(findings) for moment in finding.slice if moment.marked}


def key(moment: Moment) -> tuple[object, ...]:
    """Identifies a moment in a finding and in the timeline."""
    return moment.rank, moment.event, moment.label, moment.where, moment.micro_batch


@dataclass(frozen=True)
class Block:
    """A call in a picture: its name, its colour, and the law that it breaks."""

    name: str
    colour: str
    law: str | None


@dataclass(frozen=True)
class Column:
    """The calls of all ranks at one point. joined: they met in a collective. times: how often in a row."""

    blocks: tuple[Block | None, ...]
    joined: bool
    times: int


def picture(timeline: Timeline | None, laws: Mapping[tuple[object, ...], str]) -> tuple[Sequence[int], list[Column]]:
    """The ranks and the columns of a picture, without columns if there is no timeline. laws: as from `broken_at`."""
    if timeline is None:
        return (), []
    laid = lanes(timeline)
    rows = [row for row in laid.rows if any(one.marked for one in row.moments) or not _ends(row.moments[0])]
    blocks = [(tuple(_block(cell, laws) for cell in row.cells), row.joined) for row in rows]
    return laid.ranks, [Column(*of, len([*run])) for of, run in groupby(blocks)]


def _ends(moment: Moment) -> bool:
    return moment.event.endswith(("_end", "_exit"))


def _block(moment: Moment | None, laws: Mapping[tuple[object, ...], str]) -> Block | None:
    if moment is None:
        return None
    words = moment.event.removesuffix("_begin").removesuffix("_enter").replace("_", " ")
    name = moment.label.split(" ")[0] if words == "collective" else words
    law = laws.get(key(moment), "") if moment.marked else None
    return Block(name, _KINDS.get(words.split(" ")[0], "s5"), law)
