"""Where ranks lie: local ranks and nodes, for machines with as many ranks and with different numbers of them."""

from __future__ import annotations

from conformance.adapter.backends import Topology


def test_without_hosts_there_is_one():
    alone = Topology.of({"world_size": 3})
    assert (alone.hosts, len(alone.nodes)) == (("localhost",) * 3, 1)
    assert [alone.local_rank(rank) for rank in range(3)] == [0, 1, 2]
    assert [alone.local_size(rank) for rank in range(3)] == [3, 3, 3]
    assert [alone.across(rank) for rank in range(3)] == [(0,), (1,), (2,)]


def test_hosts_of_different_sizes():
    uneven = Topology.of({"world_size": 3, "hosts": ["a", "b", "a"]})
    assert [uneven.node(rank) for rank in range(3)] == [0, 1, 0]
    assert [uneven.local_rank(rank) for rank in range(3)] == [0, 0, 1]
    assert [uneven.local_size(rank) for rank in range(3)] == [2, 1, 2]
    assert [uneven.across(rank) for rank in range(3)] == [(0, 1), (0, 1), (2,)]
