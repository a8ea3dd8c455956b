"""The ring's schedule ends with every rank holding every complete segment, each gradient in it once."""

from __future__ import annotations

from fractions import Fraction
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.ring import contributions, played, schedule

sizes = pytest.mark.parametrize("world_size", range(1, 9))


@sizes
def test_every_rank_ends_with_every_gradient_once_in_every_segment(world_size):
    everyone = tuple(range(world_size))
    assert contributions(world_size)[-1] == ((everyone,) * world_size,) * world_size


@sizes
def test_between_the_phases_each_rank_holds_the_sum_of_its_own_segment(world_size):
    state = contributions(world_size)[world_size - 1]
    complete = [(rank, segment) for rank in range(world_size) for segment in range(world_size)
                if state[rank][segment] == tuple(range(world_size))]  # fmt: skip
    assert complete == [(rank, rank) for rank in range(world_size)]


@sizes
def test_each_rank_sends_one_segment_a_step_to_the_next(world_size):
    steps = schedule(world_size)
    assert len(steps) == 2 * (world_size - 1)
    for messages in steps:
        assert [message.sender for message in messages] == list(range(world_size))
        assert [message.receiver for message in messages] == [(rank + 1) % world_size for rank in range(world_size)]
        assert len({message.segment for message in messages}) == world_size


def test_the_notebook_order_at_three_ranks():
    segments = [[message.segment for message in messages] for messages in schedule(3)]
    assert segments == [[2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 0, 1]]


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_it_sums(pieces):
    total = tuple(map(sum, zip(*pieces, strict=True)))
    assert played(pieces, add)[-1] == (total,) * len(pieces)


def test_a_step_left_out_shows():
    """The check above can fail: one message that is not delivered leaves a segment incomplete."""
    state = contributions(3)[-2]
    assert state != (((0, 1, 2),) * 3,) * 3


def test_the_order_of_addition_differs_by_segment_and_not_by_rank():
    """So floating-point sums differ between segments, and all ranks hold the same ones."""
    pieces = [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.3, 0.3, 0.3]]
    *_, final = played(pieces, add)
    assert len(set(final)) == 1
    assert len({Fraction(value) for value in final[0]}) == 2


def test_no_ring():
    with pytest.raises(ValueError, match="0 ranks"):
        schedule(0)
