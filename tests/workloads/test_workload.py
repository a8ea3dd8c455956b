"""Valid and invalid workloads."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD, AdamW, Group, Sample, Workload


def batch(*points: tuple[int, int]) -> tuple[Sample, ...]:
    return tuple(Sample((Fraction(x),), Fraction(y)) for x, y in points)


WORKLOAD = Workload(
    name="two batches",
    batches=(batch((1, 1), (2, 2)), batch((3, 3), (4, 4))),
    optimizer=SGD(Fraction(1, 4)),
    model=Linear(1),
    start=(Fraction(1),),
)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"batches": ()}, "needs at least one global batch, and none may be empty"),
        ({"batches": (batch((1, 1)), ())}, "needs at least one global batch, and none may be empty"),
        (
            {"batches": (batch((1, 1)), batch((1, 1), (2, 2)), batch((1, 1)))},
            "global batches must be equally long, except a shorter last one",
        ),
        (
            {"batches": (batch((1, 1)), batch((1, 1), (2, 2)))},
            "global batches must be equally long, except a shorter last one",
        ),
        ({"model": Linear(2)}, "samples have [1] features, the model 2"),
        ({"model": Linear(1, bias=True)}, "1 initial numbers for 2 elements"),
        ({"groups": (Group(Fraction(1), Fraction(0)),)}, "its parameters do not use all 1 further groups"),
        ({"schedule": (Fraction(1),)}, "the schedule covers 1 of 2 steps"),
        ({"schedule": (Fraction(1),) * 3, "epochs": 2}, "the schedule covers 3 of 4 steps"),
        ({"schedule": (Fraction(1),), "schedule_by": "epoch", "epochs": 2}, "the schedule covers 1 of 2 epochs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes, line):
    with pytest.raises(ValueError, match=r"\Aworkload two batches: ") as refusal:
        replace(WORKLOAD, **changes)
    assert str(refusal.value) == f"workload two batches: {line}"


def test_steps_count_batches_and_epochs_and_a_short_last_batch_leaves_the_batch_size_alone():
    twice = replace(WORKLOAD, epochs=2)
    short = replace(WORKLOAD, batches=(batch((1, 1), (2, 2)), batch((3, 3))))
    assert [one.steps for one in (WORKLOAD, twice, short)] == [2, 4, 2]
    assert short.batch_size == 2
    # A float default has its binary value.
    assert AdamW(Fraction(1)).weight_decay == Fraction(5764607523034235, 2**59)


def test_ranks_start_from_different_weights_only_where_asked():
    apart = replace(WORKLOAD, ranks_start_apart=True)
    assert [WORKLOAD.start_of(rank) for rank in range(3)] == [WORKLOAD.start] * 3
    assert apart.start_of(0) == apart.start
    assert len({apart.start_of(rank) for rank in range(3)}) == 3
