"""Ring all-reduce for any number of ranks, elements and segments, in real processes over gloo."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.pool import Pool

from .tasks import make_spec, of_kind

RINGS = f"{__file__.rpartition('/')[0]}/rings.py"
BACKENDS = {"in_segments": "ring", "without_all_gather": "ring", "whole": "ring-gather"}


@pytest.fixture(scope="module")
def pools():
    """The ranks of each function and world size, started when they are first asked for."""
    started = {}
    with ExitStack() as stack:

        def pool(function, world_size):
            if (function, world_size) not in started:
                target = f"{RINGS}:{function}"
                started[function, world_size] = stack.enter_context(Pool(target, BACKENDS[function], world_size))
            return started[function, world_size]

        yield pool


def run(pool, function, vectors, segments=None):
    spec = make_spec(world_size=len(vectors), backend=BACKENDS[function])
    return pool(function, len(vectors)).run({**spec, "vectors": vectors, "segments": segments}, time_limit=60.0)


def raised(outcome):
    return [event["message"] for rank in outcome.ranks for event in of_kind(rank.events, "raised")]


def messages(rank):
    return [event["elements"] for event in of_kind(rank.events, "send")]


@st.composite
def dealt(draw):
    """For 2 to 4 ranks, as many vectors of whole numbers of one size, which may be smaller than the number of ranks."""
    ranks, size = draw(st.integers(2, 4)), draw(st.integers(1, 23))
    numbers = st.lists(st.integers(-1000, 1000), min_size=size, max_size=size)
    return draw(st.lists(numbers, min_size=ranks, max_size=ranks))


@settings(max_examples=50)
@given(vectors=dealt(), segments=st.none() | st.integers(1, 30))
def test_every_rank_has_the_sum(pools, vectors, segments):
    outcome = run(pools, "in_segments", vectors, segments)
    assert raised(outcome) == []
    assert all(rank.finished for rank in outcome.ranks)
    ranks, size = len(vectors), len(vectors[0])
    rounds = -(-(segments or ranks) // ranks)
    assert [len(messages(rank)) for rank in outcome.ranks] == [rounds * 2 * (ranks - 1)] * ranks
    # Reduce-scatter sends every segment N - 1 times, and so does all-gather.
    assert sum(sum(messages(rank)) for rank in outcome.ranks) == 2 * (ranks - 1) * size


@settings(max_examples=50)
@given(vectors=dealt())
def test_so_it_has_where_whole_gradients_go_round(pools, vectors):
    outcome = run(pools, "whole", vectors)
    assert raised(outcome) == []
    ranks, size = len(vectors), len(vectors[0])
    ends = [[size]] * 2 if ranks == 2 else [[size], *[[size] * 2] * (ranks - 2), [size]]
    assert [messages(rank) for rank in outcome.ranks] == ends


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_reduce_scatter_alone_leaves_a_segment_each(pools, world_size):
    """So the sum above is no accident: every rank says that it has not got it."""
    vectors = [[rank + 1] * 5 for rank in range(world_size)]
    found = raised(run(pools, "without_all_gather", vectors))
    assert len(found) == world_size
