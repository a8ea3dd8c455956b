"""Lanes: rows keep each rank's order, join equal calls of ranks, and show where ranks met."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.report.swimlanes import Lanes, Row, around_marks, lanes
from conformance.results.result_lines import Join, Moment, Timeline

from ..results import synthetic


def read(told: dict) -> Timeline:
    return Timeline(
        tuple(Moment(**moment) for moment in told["moments"]),
        told["window"],
        tuple(Join(tuple(join["moments"])) for join in told["joins"]),
    )


def labels(timeline: Timeline) -> list[list[str | None]]:
    return [[None if cell is None else cell.event for cell in row.cells] for row in lanes(timeline).rows]


def test_what_one_rank_does_alone_stands_alone():
    rows = labels(read(synthetic.timeline()))
    assert rows == [
        ["forward", "forward"],
        [None, "zero_grad"],
        ["backward_begin", "backward_begin"],
        ["collective", "collective"],
        ["clip", "clip"],
        ["unscale", "unscale"],
        ["step", "step"],
    ]


def test_only_meetings_are_joined_and_marks_are_kept():
    rows = lanes(read(synthetic.timeline())).rows
    assert [row.joined for row in rows].index(True) == 3
    assert sum(row.joined for row in rows) == 1
    assert [all(moment.marked for moment in row.moments) for row in rows].index(True) == 4


def test_a_late_rank_shares_its_rows_with_one_that_is_long_done():
    moments = [Moment(rank, 100.0 * rank + i, kind, kind) for rank in (0, 1) for i, kind in enumerate("abc")]
    assert labels(Timeline(tuple(moments))) == [["a", "a"], ["b", "b"], ["c", "c"]]


def test_collectives_that_cross_do_not_lock_the_layout():
    moments = [Moment(0, 0, "x", "x"), Moment(0, 1, "y", "y"), Moment(1, 0, "y", "y"), Moment(1, 1, "x", "x")]
    crossed = Timeline(tuple(moments), joins=(Join((0, 3)), Join((1, 2))))
    assert sorted(sum(cell is not None for cell in row) for row in labels(crossed)) in ([1, 1, 2], [2, 2])


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=6), min_size=1, max_size=3))
def test_every_moment_is_shown_once_in_its_rank_s_order(ranks):
    moments = [Moment(rank, i, kind, kind) for rank, kinds in enumerate(ranks) for i, kind in enumerate(kinds)]
    laid = lanes(Timeline(tuple(moments)))
    for column, rank in enumerate(laid.ranks):
        shown = [row.cells[column].event for row in laid.rows if row.cells[column] is not None]
        assert shown == ranks[rank]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_as_many_lanes_as_ranks(count):
    assert lanes(read(synthetic.timeline(count))).ranks == tuple(range(count))


def test_rows_far_from_a_broken_law_are_counted():
    def row(marked: bool) -> Row:
        return Row((Moment(0, 0.0, "step", "step", marked=marked),), joined=False)

    laid = Lanes((0,), tuple(row(number in (6, 7)) for number in range(20)))
    shown = around_marks(laid, near=2)
    assert [one if isinstance(one, int) else "row" for one in shown] == [4, *["row"] * 6, 10]
    assert around_marks(Lanes((0,), (row(False),) * 20)) == [row(False)] * 20
    assert around_marks(laid, near=5) == [laid.rows[0], *laid.rows[1:13], 7]
