"""The ring's schedule ends with every rank holding every complete segment, each gradient in it once."""

from __future__ import annotations

from fractions import Fraction
from operator import add

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.ring import contributions, played, schedule


@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_rank_ends_with_every_gradient_once_in_every_segment(world_size):
    """And between the phases with the sum of its own segment. In each step it sends one segment to the next rank."""
    everyone, states, steps = tuple(range(world_size)), contributions(world_size), schedule(world_size)
    assert states[-1] == ((everyone,) * world_size,) * world_size
    between = states[world_size - 1]
    assert [(rank, at) for rank in everyone for at in everyone if between[rank][at] == everyone] == [
        (rank, rank) for rank in everyone
    ]
    assert len(steps) == 2 * (world_size - 1)
    for messages in steps:
        assert [(one.sender, one.receiver) for one in messages] == [
            (rank, (rank + 1) % world_size) for rank in everyone
        ]
        assert {message.segment for message in messages} == set(everyone)


def test_the_notebook_order_at_three_ranks():
    segments = [[message.segment for message in messages] for messages in schedule(3)]
    assert segments == [[2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 0, 1]]
    assert contributions(3)[-2] != (((0, 1, 2),) * 3,) * 3, "one step less leaves a segment incomplete"
    with pytest.raises(ValueError, match="0 ranks"):
        schedule(0)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_it_sums(pieces):
    total = tuple(map(sum, zip(*pieces, strict=True)))
    assert played(pieces, add)[-1] == (total,) * len(pieces)


def test_the_order_of_addition_differs_by_segment_and_not_by_rank():
    """So floating-point sums differ between segments, and all ranks have the same sums."""
    *_, final = played([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.3, 0.3, 0.3]], add)
    assert len(set(final)) == 1
    assert len({Fraction(value) for value in final[0]}) == 2
