"""A timeline as a table and as a picture: a lane for each rank, with what ranks did at the same point of their work.

Each rank's events stay in order. Ranks that do the same share a row, whichever was first by the clock; so do ranks that
meet in a collective, and the row says so. A rank that does something else gets a separate row, so that it stands out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from conformance.results.records import Finding, Moment, Timeline

from .figure import HEIGHT, RIGHT


@dataclass(frozen=True)
class Row:
    """What each rank did, None for one that took no part. ``joined``: they met in a collective."""

    cells: tuple[Moment | None, ...]
    joined: bool

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(cell for cell in self.cells if cell is not None)

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
    moments: tuple[Moment, ...], joins: dict[int, tuple[int, ...]], heads: dict[int, int], left: dict[int, list[int]]
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


LEFT, TOP, BOTTOM = 40, 12, HEIGHT - 22
LABEL = 11
MOST_LAWS = 3

KINDS = (("forward", "s0"), ("backward", "s1"), ("collective", "s2"), ("step", "s3"), ("else", "s5"))
"""What boxes show, with the colour of each."""


def broken_at(findings: Sequence[Finding]) -> dict[tuple[object, ...], str]:
    """The law that each marked moment of a timeline breaks, by `key`."""
    return {key(moment): finding.law for finding in reversed(findings) for moment in finding.slice if moment.marked}


def key(moment: Moment) -> tuple[object, ...]:
    """What a moment of a finding and the same one of the timeline have in common."""
    return moment.rank, moment.event, moment.label, moment.where, moment.micro_batch


@dataclass(frozen=True)
class Picture:
    """Lanes in pixels: the height of each rank's, a line where ranks meet in a collective, boxes by their colour, and
    laws, each with the place of the first box that breaks it."""

    ranks: tuple[tuple[int, int], ...]
    meetings: str
    boxes: Mapping[str, str]
    labels: tuple[tuple[str, int, int], ...]


def picture(timeline: Timeline | None, laws: Mapping[tuple[object, ...], str]) -> Picture | None:
    """For an `<svg viewBox="0 0 360 216">`; None without a timeline. laws: as from `broken_at`."""
    if timeline is None or not timeline.moments:
        return None
    laid = lanes(timeline)
    broken = {
        laws[key(cell)]: (column, rank)
        for column, row in reversed([*enumerate(laid.rows)])
        for rank, cell in enumerate(row.cells)
        if cell is not None and key(cell) in laws
    }
    shown = [*reversed(broken.items())][:MOST_LAWS]
    top = TOP + LABEL * len(shown)
    step = (RIGHT - LEFT - 6) / len(laid.rows)
    half = max(1, min(5, int(step / 2) - 1))
    across = [round(LEFT + 6 + (column + 0.5) * step) for column in range(len(laid.rows))]
    down = [round(top + (rank + 0.5) * (BOTTOM - top) / len(laid.ranks)) for rank in range(len(laid.ranks))]
    meetings, boxes = "", defaultdict[str, str](str)
    for x, row in zip(across, laid.rows, strict=True):
        met = [(y, cell) for y, cell in zip(down, row.cells, strict=True) if cell is not None]
        meetings += f"M{x} {met[0][0]}V{met[-1][0]}" if row.joined else ""
        for y, cell in met:
            boxes["marked" if cell.marked else _colour(cell.event)] += f"M{x - half} {y}h{2 * half}"
    labels = tuple((law, across[column], down[rank]) for law, (column, rank) in shown)
    return Picture(tuple(zip(laid.ranks, down, strict=True)), meetings, boxes, labels)


def _colour(event: str) -> str:
    return next((colour for kind, colour in KINDS if event.startswith(kind) or event.endswith(kind)), KINDS[-1][1])
