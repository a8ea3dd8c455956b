"""Workloads that are exact in any order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from conformance.cases.case import Case
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.any_order import BATCH_SIZES, any_order
from conformance.workloads.layout import micro_batches, windows_of


@pytest.mark.parametrize(
    ("name", "batch_size"), [(name, size) for name, sizes in BATCH_SIZES.items() for size in sizes]
)
def test_a_row_shows_which_sample_it_is(name, batch_size):
    workload = any_order(name, batch_size)
    samples = [sample.x for batch in workload.batches for sample in batch]
    assert len(samples) == len(set(samples)) == workload.samples
    assert workload.steps == 6


@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 1), (1, 2), (2, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("name", BATCH_SIZES)
def test_any_order_is_exact(name, world_size, accumulation):
    """Also one in which samples come several times in a window, and others never."""
    problem = Case("ddp", world_size, accumulation, "fp32", name).problem
    draw, layout, workload = Random(name), problem.layout, problem.workload
    share = 6 // workload.epochs * layout.accumulation * layout.micro_batch_size
    for _ in range(4):
        orders = tuple(
            tuple(
                micro_batches(draw.choices(range(workload.samples), k=share), layout.micro_batch_size)
                for _ in range(world_size)
            )
            for _ in range(workload.epochs)
        )
        read = replace(problem, read=windows_of(workload, orders, layout.accumulation), in_order=False)
        assert Recurrence(read).run().certificate.exact


@pytest.mark.parametrize(
    ("name", "samples", "epochs", "size"), [("sampler-pads", 7, 3, 4), ("sampler-drops", 25, 2, 8)]
)
def test_what_a_sampler_repeats_or_drops_leaves_whole_windows(name, samples, epochs, size):
    problem = Case("ddp", 2, 2, "fp32", name).problem
    assert problem.workload.samples == samples
    assert [(window.epoch, len(window.batch)) for window in problem.windows] == [
        (epoch, size) for epoch in range(epochs) for _ in range(6 // epochs)
    ]
    of_epoch = [number for window in problem.windows if window.epoch == 0 for number in window.samples]
    assert len(of_epoch) - len(set(of_epoch)) == (name == "sampler-pads")
    assert samples - len(set(of_epoch)) == (name == "sampler-drops")
