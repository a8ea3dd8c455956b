"""The positions of shards, and the events of ranks that hold parts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from conformance.trace.hindsight.shards import joined
from conformance.trace.tensor_values import places, values


@dataclass
class Mesh:
    """The part of a DeviceMesh that locates a rank."""

    shape: tuple[int, ...]
    coordinate: list[int] | None

    def get_coordinate(self):
        return self.coordinate


@dataclass
class Split:
    """The part of a DTensor that describes its split."""

    shape: tuple[int, ...]
    placements: tuple[object, ...]
    device_mesh: Mesh


class _Strided(Shard):
    """Another kind of shard, as with tensor parallelism."""


def chunked(shape, dim, parts, part):
    """The positions of a part's elements by torch's own split."""
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
    """Copies over the first dimension; and shards of shards, first by rows and then by columns."""
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
def test_tensors_without_known_places(tensor):
    assert places(tensor) is None


def test_values_of_a_part_at_an_unknown_position_are_not_shown():
    """Such as the flat shards of FSDP1, which are plain tensors."""
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


def test_parts_are_joined():
    first = split(0, [0, 2], [1.0, None, 3.0], [4.0, None, None])
    second = split(1, [1], [None, 2.0, None], [None, 5.0, None])
    gradients = [4.0, 5.0, None]
    for events in joined([first, second]):
        assert vectors(events) == [(None, gradients), ([1.0, 2.0, 3.0], gradients)]
    assert first[2]["weights"] == [1.0, None, 3.0], "the record stays as it is"


def test_a_missing_gradient_is_not_copied_from_another_holder():
    """Elements 0 and 1 are on both ranks, but the second has no gradient for them."""
    first = split(0, [0, 1], [1.0, 2.0, None], [4.0, 5.0, None])
    second = split(1, [0, 1, 2], [1.0, 2.5, 3.0], [None, None, 6.0])
    whole = [vectors(events)[1] for events in joined([first, second])]
    assert whole == [([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([1.0, 2.5, 3.0], [None, None, 6.0])]


def test_an_element_that_no_rank_holds_is_null():
    first = split(0, [0], [1.0, None, None], [4.0, None, None])
    second = split(1, [2], [None, None, 3.0], [None, None, 6.0])
    assert [vectors(events)[1] for events in joined([first, second])] == [([1.0, None, 3.0], [4.0, None, 6.0])] * 2


def test_one_rank_steps_and_another_skips():
    """Ranks may disagree; a non-finite gradient counts for all of them."""
    first = split(0, [0], [1.0, None], ["inf", None], "skip", gradients_finite=False)
    second = split(1, [1], [None, 2.0], [None, 5.0], "skip", gradients_finite=True)
    assert [events[2]["gradients_finite"] for events in joined([first, second])] == [False, False]
    stepped = split(1, [1], [None, 2.0], [None, 5.0])
    assert [events[2]["weights"] for events in joined([first, stepped])] == [[1.0, 2.0]] * 2


def test_whole_weights_stay_unchanged():
    """Also if an optimizer lacks a parameter."""
    ranks = [[shown(0, 0, "step", weights=[1.0, 2.0], gradients=[None, 3.0])], []]
    assert joined(ranks) is ranks
