"""Division of a global batch into ranks and micro-batches."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.workloads.layout import EACH_SAMPLE, Layout
from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD, Sample, Workload


def workload(*sizes: int) -> Workload:
    """A workload with global batches of these sizes, in which all samples differ."""
    numbers = iter(range(sum(sizes)))
    batches = tuple(tuple(Sample((Fraction(next(numbers)),), Fraction(0)) for _ in range(size)) for size in sizes)
    return Workload("counting", SGD(Fraction(1)), Linear(1), batches=batches, start=(Fraction(0),))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_micro_batch_t_of_rank_r_is_chunk_t_times_world_plus_r(world, accumulation, size):
    job = workload(world * accumulation * size, world * accumulation * size)
    layout = Layout.of(job, world, accumulation)
    assert layout.micro_batch_size == size
    for step, window in enumerate(layout.windows(job)):
        assert (window.index, window.batch) == (step, job.batches[step])
        assert (window.world_size, window.length, window.nominal) == (world, accumulation, accumulation)
        for rank, share in enumerate(window.shares):
            for turn, micro_batch in enumerate(share):
                chunk = turn * world + rank
                assert micro_batch == tuple(range(chunk * size, (chunk + 1) * size))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_short_last_batch_is_dealt_evenly_and_without_loss(world, accumulation, size, data):
    full = world * accumulation * size
    short = world * data.draw(st.integers(1, accumulation * size))
    job = workload(full, short)
    window = Layout.of(job, world, accumulation).windows(job)[-1]
    dealt = [index for share in window.shares for micro_batch in share for index in micro_batch]
    assert sorted(dealt) == list(range(short))
    assert {sum(map(len, share)) for share in window.shares} == {short // world}
    sizes = [len(micro_batch) for micro_batch in window.shares[0]]
    assert all(one == size for one in sizes[:-1])
    assert 0 < sizes[-1] <= size
    assert all([len(micro_batch) for micro_batch in share] == sizes for share in window.shares)
    assert window.nominal == accumulation


def test_sample_by_sample_is_a_window_of_micro_batches_of_one():
    job = workload(3, 3)
    layout = Layout.of(job, 1, EACH_SAMPLE)
    assert (layout.world_size, layout.accumulation, layout.micro_batch_size) == (1, 3, 1)
    assert layout.windows(job)[1].shares == (((0,), (1,), (2,)),)


def test_windows_repeat_with_the_epochs():
    job = replace(workload(2, 2), name="epochs", epochs=3)
    windows = Layout.of(job).windows(job)
    assert [(window.index, window.epoch) for window in windows] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert (windows[3].samples, windows[3].batch) == ((2, 3), job.batches[1])


@pytest.mark.parametrize(("size", "world", "accumulation"), [(4, 3, 1), (4, 1, 3), (4, 2, 4), (6, 2, 2)])
def test_a_batch_that_does_not_divide_is_refused(size, world, accumulation):
    said = f"workload counting: {size} samples do not divide into {world} ranks x {accumulation} micro-batches"
    with pytest.raises(ValueError, match=rf"\A{said}\Z"):
        Layout.of(workload(size), world, accumulation)


@pytest.mark.parametrize(
    ("short", "in_whole_shares", "into"),
    [(3, False, "over 2 ranks"), (1, True, "into whole shares of 2"), (3, True, "into whole shares of 2")],
)
def test_a_last_batch_that_does_not_divide_is_refused(short, in_whole_shares, into):
    job = workload(4, short)
    layout = replace(Layout.of(job, 2), in_whole_shares=in_whole_shares)
    assert layout.window(job, 0).shares == (((0, 1),), ((2, 3),))
    with pytest.raises(ValueError, match=rf"\Aworkload counting: {short} samples do not divide {into}\Z"):
        layout.windows(job)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_short_last_batch_may_be_dealt_in_whole_shares(world, accumulation, size, data):
    with_data = data.draw(st.integers(1, world - 1))
    job = workload(world * accumulation * size, with_data * accumulation * size)
    layout = replace(Layout.of(job, world, accumulation), in_whole_shares=True)
    full, last = layout.windows(job)
    assert full == replace(layout, in_whole_shares=False).window(job, 0)
    assert (last.world_size, last.with_data, last.length) == (world, with_data, accumulation)
    assert [sum(map(len, share)) for share in last.shares] == [accumulation * size] * with_data + [0] * (
        world - with_data
    )
    assert sorted(i for share in last.shares for micro_batch in share for i in micro_batch) == [*range(len(last.batch))]
