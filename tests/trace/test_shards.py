"""Where the shards of a parameter lie, and what becomes of the events of ranks that hold parts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from conformance.trace.hindsight.shards import joined
from conformance.trace.values import places, values


@dataclass
class Mesh:
    """As much of a DeviceMesh as says where a rank is."""

    shape: tuple[int, ...]
    coordinate: list[int] | None

    def get_coordinate(self):
        return self.coordinate


@dataclass
class Split:
    """As much of a DTensor as says how it is split."""

    shape: tuple[int, ...]
    placements: tuple[object, ...]
    device_mesh: Mesh


class _Strided(Shard):
    """Another kind of shard, as beside tensor parallelism."""


def chunked(shape, dim, parts, part):
    """The same by torch: the numbers of the elements, split as it splits them."""
    numbers = torch.arange(torch.Size(shape).numel()).view(shape).chunk(parts, dim)
    return tuple(numbers[part].flatten().tolist()) if part < len(numbers) else ()


@pytest.mark.parametrize("shape", [(1, 3), (5, 2), (4,), (1,), (3, 2, 2)])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_places_are_those_of_torchs_chunks(shape, parts):
    for dim in range(len(shape)):
        for part in range(parts):
            tensor = Split(shape, (Shard(dim),), Mesh((parts,), [part]))
            assert places(tensor) == chunked(shape, dim, parts, part)


def test_a_mesh_of_two_dimensions():
    """Copies over the first; and shards of shards, row by row and then by columns."""
    assert places(Split((1, 4), (Replicate(), Shard(1)), Mesh((2, 2), [1, 0]))) == (0, 1)
    assert places(Split((2, 4), (Shard(0), Shard(1)), Mesh((2, 2), [1, 0]))) == (4, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2),
        Split((2,), (Replicate(),), Mesh((2,), [0])),
        Split((2,), (Partial(),), Mesh((2,), [0])),
        Split((2,), (Shard(0),), Mesh((2,), None)),
        Split((2,), (_Strided(0),), Mesh((2,), [0])),
    ],
)
def test_what_is_whole_or_says_nothing_has_no_places(tensor):
    assert places(tensor) is None


def test_values_of_a_part_that_nothing_places_are_not_shown():
    """As of the first FSDP, whose flat shards are tensors like any others."""
    assert values([torch.ones(2), torch.ones(3)], [3, 3]) == [None, None, None, 1.0, 1.0, 1.0]


def shown(rank, seq, event, **fields):
    return {"event": event, "rank": rank, "seq": seq, "window": 0, "micro_batch": 1, **fields}


def split(rank, held, weights, gradients, event="step", **fields):
    return [
        shown(rank, 0, "shards", held=held),
        shown(rank, 1, "clip", gradients=gradients),
        shown(rank, 2, event, weights=weights, gradients=gradients, **fields),
    ]


def vectors(events):
    return [(event.get("weights"), event.get("gradients")) for event in events if event["event"] != "shards"]


def test_parts_are_put_together():
    first = split(0, [0, 2], [1.0, None, 3.0], [4.0, None, None])
    second = split(1, [1], [None, 2.0, None], [None, 5.0, None])
    gradients = [4.0, 5.0, None]
    for events in joined([first, second]):
        assert vectors(events) == [(None, gradients), ([1.0, 2.0, 3.0], gradients)]
    assert first[2]["weights"] == [1.0, None, 3.0], "the record stays as it is"


def test_a_gradient_that_its_holder_lacks_is_no_copys():
    """Elements 0 and 1 are on both ranks, and the second has no gradient for them."""
    first = split(0, [0, 1], [1.0, 2.0, None], [4.0, 5.0, None])
    second = split(1, [0, 1, 2], [1.0, 2.5, 3.0], [None, None, 6.0])
    whole = [vectors(events)[1] for events in joined([first, second])]
    assert whole == [([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([1.0, 2.5, 3.0], [None, None, 6.0])]


def test_what_no_rank_holds_is_a_hole():
    first = split(0, [0], [1.0, None, None], [4.0, None, None])
    second = split(1, [2], [None, None, 3.0], [None, None, 6.0])
    assert [vectors(events)[1] for events in joined([first, second])] == [([1.0, None, 3.0], [4.0, None, 6.0])] * 2


def test_a_step_beside_a_skip():
    """Ranks that disagree; a gradient that is not finite is so for all of them."""
    first = split(0, [0], [1.0, None], ["inf", None], "skip", gradients_finite=False)
    second = split(1, [1], [None, 2.0], [None, 5.0], "skip", gradients_finite=True)
    assert [events[2]["gradients_finite"] for events in joined([first, second])] == [False, False]
    stepped = split(1, [1], [None, 2.0], [None, 5.0])
    assert [events[2]["weights"] for events in joined([first, stepped])] == [[1.0, 2.0]] * 2


def test_whole_weights_are_left_alone():
    """Also where an optimizer does not hold a parameter."""
    ranks = [[shown(0, 0, "step", weights=[1.0, 2.0], gradients=[None, 3.0])], []]
    assert joined(ranks) is ranks
