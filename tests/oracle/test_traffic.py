"""The formulas of traffic against a count of the messages, one by one, and against the literature's mean."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.oracle.traffic import Expected, Partitioned, Split, expected, ring_all_reduce, ring_collective


def counted(ranks, elements):
    """What a ring's ranks send and receive, by doing it: which segment goes where, as the notebook says."""
    sizes = [len(range(rank, elements, ranks)) for rank in range(ranks)]
    sent, received = [0] * ranks, [0] * ranks
    for first in (1, 0):
        for step in range(ranks - 1):
            for node in range(ranks):
                size = sizes[(node - step - first) % ranks]
                sent[node] += size
                received[(node + 1) % ranks] += size
    return sent, received


@given(ranks=st.integers(2, 9), elements=st.integers(1, 100), width=st.sampled_from([2, 4, 8]))
def test_ring(ranks, elements, width):
    sent, received = counted(ranks, elements)
    found = expected("ring", ranks, elements, width)
    assert [(one.sent, one.received, one.reduced) for one in found] == [
        (width * out, width * into, 0) for out, into in zip(sent, received, strict=True)
    ]
    assert Fraction(sum(one.sent for one in found), ranks) == ring_all_reduce(ranks, Fraction(width * elements))


def test_known_numbers():
    """A gradient of 3 floats over 3 ranks: a server, a ring, whole gradients around it, what all-reduce is given."""
    assert expected("parameter-server", 3, 3, 4) == (Expected(24, 24, 0), Expected(12, 12, 0), Expected(12, 12, 0))
    assert expected("ring", 3, 3, 4) == (Expected(16, 16, 0),) * 3
    assert expected("ring-gather", 3, 3, 4) == (Expected(12, 12, 0), Expected(24, 12, 0), Expected(12, 24, 0))
    assert expected("ddp", 3, 3, 4) == expected("horovod", 3, 3, 4) == (Expected(0, 0, 12),) * 3
    assert expected("single", 1, 3, 4) is None
    assert expected("zero-redundancy", 3, 3, 4, stepped=Fraction(1, 2)) == (Expected(0, 0, 18),) * 3


def test_shards():
    """By hand: 4 ranks with at most 2 of 7 floats each, gathered twice in 16 bits; and pairs with 4 of them."""
    four = Split(share=2, copies=1, gathers=Fraction(2), width=2)
    assert expected("fsdp2", 4, 7, 4, four) == (Expected(0, 0, 2 * 2 * 2 + 4 * 2 * 4),) * 4
    pairs = Split(share=4, copies=2, gathers=Fraction(2), width=2)
    assert expected("fsdp2", 4, 7, 4, pairs) == (Expected(0, 0, 2 * 4 * 2 + 2 * 4 * 4 + 4 * 4),) * 4
    assert expected("fsdp2", 4, 7, 4) is None


def test_partitions():
    """By hand: 18 floats, in two parts of 10 together, or of 11 where each tensor is split; the mean of 2 and 1
    micro-batches; one step of two is skipped."""
    stepped, twice = Fraction(1, 2), Fraction(3, 2)
    for split, reduced in (
        (Partitioned(stage=0, share=0, gradient_width=4, weight_width=4, reductions=Fraction(1)), 72),
        (Partitioned(stage=1, share=10, gradient_width=4, weight_width=2, reductions=Fraction(1)), 72 + 20 * stepped),
        (Partitioned(stage=2, share=10, gradient_width=2, weight_width=4, reductions=twice), 36 * twice + 40 * stepped),
        (Partitioned(stage=3, share=11, gradient_width=4, weight_width=4, reductions=twice), 88 * twice + 44 * stepped),
    ):
        assert expected("deepspeed", 2, 18, split.gradient_width, split, stepped) == (Expected(0, 0, reduced),) * 2
    assert expected("deepspeed", 2, 18, 4) is None
    assert expected("deepspeed", 2, 18, 4, Split(9, 1, Fraction(1), 4)) is None
    assert expected("fsdp2", 2, 18, 4, split) is None


def test_a_ring_of_collectives():
    """With 12 bytes among 3 ranks, each sends 8 to scatter the sums and 8 to gather them again."""
    assert ring_collective("_reduce_scatter_base_", 3, 12) == ring_collective("_allgather_base_", 3, 4) == 8
    assert ring_collective("allreduce_", 3, 12) == 2 * ring_collective("broadcast_", 3, 12) == 16


@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_server_has_all_of_it_to_carry_and_a_ring_does_not(ranks):
    elements = 840
    server, *workers = expected("parameter-server", ranks, elements, 4)
    assert server.sent == server.received == sum(worker.sent for worker in workers) == 4 * elements * (ranks - 1)
    assert max(one.sent for one in expected("ring", ranks, elements, 4)) < 2 * 4 * elements
    for backend in ("ring", "ring-gather", "parameter-server"):
        found = expected(backend, ranks, 7, 8)
        assert sum(one.sent for one in found) == sum(one.received for one in found), "nothing is lost on the way"
