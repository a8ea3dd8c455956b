"""Standard workloads by name, with a batch that divides over the layout."""

from __future__ import annotations

from itertools import pairwise

import pytest

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import STANDARD, asking, standard


@pytest.mark.parametrize(
    ("world", "accumulation", "batch_size"), [(1, 1, 24), (4, 3, 24), (4, 4, 16), (2, 4, 24), (3, 3, 18)]
)
def test_the_first_batch_that_divides_is_taken(world, accumulation, batch_size):
    workload, layout = standard("momentum", world, accumulation)
    assert workload.batch_size == batch_size
    assert layout.world_size * layout.accumulation * layout.micro_batch_size == batch_size


@pytest.mark.parametrize("name", STANDARD)
def test_every_step_changes_the_weights(name):
    """Without a torch optimizer, a step is only seen by this."""
    workload, layout = standard(name, 2, 1)
    steps = Recurrence(Problem(workload, layout, PRECISIONS["fp64"])).run().steps
    held = [workload.start, *(tuple(step.weights.center) for step in steps)]
    assert all(before != after for before, after in pairwise(held))


@pytest.mark.parametrize("name", STANDARD)
def test_what_a_workload_asks_of_a_trainer_is_known_without_its_data(name):
    asked, (workload, _) = asking(name), standard(name, 2, 1)
    assert workload.name == name
    for what in (
        "summary",
        "optimizer",
        "loss",
        "schedule",
        "schedule_by",
        "groups",
        "model",
        "unfreeze_at",
        "clip",
        "average",
    ):
        assert getattr(asked, what) == getattr(workload, what), what


@pytest.mark.parametrize(
    ("name", "shape", "sizes"),
    [
        # By whole micro-batches.
        *(
            ("short-window", (world, accumulation), [24 // world // accumulation] * length)
            for accumulation, length in ((2, 1), (3, 1), (4, 2))
            for world in (1, 2)
        ),
        ("uneven-batch", (1, 2), [8, 4]),
        ("uneven-batch", (2, 2), [4, 2]),
        ("uneven-batch", (2, 1), [6]),
        ("uneven-batch", (1, 4), [4, 4, 4]),
    ],
)
def test_the_last_window_is_short_or_its_last_batch_uneven(name, shape, sizes):
    workload, layout = standard(name, *shape)
    shares = layout.windows(workload)[-1].shares
    assert [[len(micro_batch) for micro_batch in share] for share in shares] == [sizes] * shape[0]


@pytest.mark.parametrize(("world", "accumulation", "with_data"), [(2, 1, 1), (2, 2, 1), (4, 1, 2)])
def test_half_of_the_ranks_run_out_of_data(world, accumulation, with_data):
    workload, layout = standard("uneven-ranks", world, accumulation)
    *before, last = layout.windows(workload)
    assert {window.with_data for window in before} == {world}
    assert (last.with_data, last.length) == (with_data, accumulation)


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        standard("nonesuch", 1, 1)


def test_no_batch_of_a_fixed_data_set_divides_by_three():
    with pytest.raises(ValueError, match=r"\Aworkload line: no global batch divides over 3 ranks x 1 micro-batches\Z"):
        standard("line", 3, 1)
