"""The order of each epoch: a batch can come at any place, and its samples stay together."""

import pytest
from torch.utils.data import DistributedSampler

from conformance.workloads.reading_plan import sampled, shuffled


@pytest.mark.parametrize("number", range(-2, 6))
def test_batches_keep_together_and_a_small_one_stays_last(number):
    order = shuffled(40, 16, number)
    batches = [sorted(order[start : start + 16]) for start in (0, 16, 32)]
    assert sorted(batches) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    assert batches[-1] == list(range(32, 40))
    assert (list(order) == list(range(40))) == (number == 0)


def test_each_order_is_another_one():
    """Also within a single batch."""
    orders = [tuple(shuffled(96, 32, number)) for number in range(-8, 9)]
    assert len(set(orders)) == len(orders)
    starts = [[order[start] // 32 for start in (0, 32, 64)] for order in orders]
    assert [start for start in starts if start == [0, 1, 2]] == [[0, 1, 2]]
    assert sorted(shuffled(8, 8, 1)) == list(range(8)) != list(shuffled(8, 8, 1))


@pytest.mark.parametrize("sampler", ["pad", "drop"])
@pytest.mark.parametrize(("samples", "world_size"), [(23, 2), (25, 2), (35, 3), (37, 3), (38, 3), (22, 4), (24, 4)])
def test_a_sampler_deals_out_as_that_of_torch(samples, world_size, sampler):
    own = [
        list(DistributedSampler(range(samples), world_size, rank, shuffle=False, drop_last=sampler == "drop"))
        for rank in range(world_size)
    ]
    assert sampled(samples, world_size, 0, sampler) == own


@pytest.mark.parametrize(("sampler", "often"), [("pad", [1] * 22 + [2]), ("drop", [1] * 22)])
def test_a_sampler_shuffles_all_samples_and_repeats_the_first_or_drops_the_last(sampler, often):
    first, second = (sampled(23, 2, number, sampler) for number in (1, 2))
    read = [number for own in first for number in own]
    assert sorted(map(read.count, set(read))) == often
    assert first != second
    assert {number // 8 for number in first[0][:4]} != {0}
