"""The catalogue of faults: each changes the named decision, and each differs from the correct answer somewhere."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import inf

import pytest

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Enclosure
from conformance.oracle.faults import CATALOGUE, KNOWN, applicable
from conformance.oracle.faults.short_windows import AddsWhatIsLeft
from conformance.oracle.power import OneSampleMoved, Power, power, separation
from conformance.oracle.recurrence import Recurrence, Step, deviating, pairs
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import standard
from conformance.workloads.workload import SGD, Clip, Sample, Workload

FAULTS = {fault.name: fault for fault in CATALOGUE}
every_fault = pytest.mark.parametrize("name", FAULTS)

OTHERS = "cast-weights", "short-window", "uneven-ranks"
#: Each with the window at which it is resumed, and the micro-batches of that before the stop.
PLACES = [
    *((workload, (2, 2), "fp32") for workload in ("uneven-batch", "many-tensors", "many-groups", "two-groups-clip")),
    *((workload, (2, 2), "fp32") for workload in ("frozen", "unfrozen", "unfrozen-clip-value", "unused", "two-layers")),
    ("sparse", (2, 1), "fp32", None),
    ("many-clip-norm", (2, 2), "fp32", None),
    *((average, (2, 2), "fp32", None) for average in ("ema", "swa")),
    ("adagrad", (2, 2), "fp32", None),
    ("fine-gradients", (2, 2), "fp32", None),
    ("adamw", (2, 2), "fp64", None),
    ("short-epochs", (2, 2), "fp32", None),
    ("epoch-schedule", (2, 2), "fp32", None),
    ("many-tensors", (2, 2), "fp32", 4),
    *((workload, (2, 2), "fp32", 3) for workload in ("momentum", "adamw", "two-groups")),
    ("momentum", (2, 2), "fp32", 3, 1),
    ("momentum", (2, 2), "fp32", 3, 0, Layout(3, 2, 4)),
    *product(
        (
            *("momentum", "clip-value", "decay", "two-groups", "weighted", "clip-norm", "adamw-clip", "fine-data"),
            *OTHERS,
        ),
        [(2, 2), (2, 3)],
        ["fp32", "fp16"],
    ),
]


def batch(*weights):
    return tuple(
        Sample((Fraction(index),), Fraction(-(index**2)), Fraction(weight)) for index, weight in enumerate(weights, 1)
    )


#: Two ranks with two micro-batches of two samples each; dealt out as (0 1 | 4 5) and (2 3 | 6 7).
WORKLOAD = Workload("eight", SGD(Fraction(1, 2)), Linear(1), batches=(batch(*[1] * 8),) * 2, start=(Fraction(1),))
WEIGHTED = replace(WORKLOAD, batches=(batch(1, 0, 2, 2, 0, 0, 3, 8),) * 2, loss="weighted")
EIGHTH = Fraction(1, 8)


def coefficients(name, workload=WORKLOAD, window=0):
    layout = Layout(2, 2, 2)
    recurrence = FAULTS[name].textbook(Problem(workload, layout, PRECISIONS["fp32"]))
    return list(recurrence.coefficients(layout.windows(workload)[window]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sum-over-ranks", [2] * 8),
        ("world-divided-twice", [Fraction(1, 2)] * 8),
        ("sum-over-window", [2] * 8),
        ("window-divided-twice", [Fraction(1, 2)] * 8),
        ("loss-summed", [2] * 8),
        ("not-synchronised", [2, 2, 0, 0, 2, 2, 0, 0]),
        ("zero-grad-in-window", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("first-micro-batch-only", [1, 1, 1, 1, 0, 0, 0, 0]),
        ("sample-dropped", [1, 1, 1, 1, 1, 1, 1, 0]),
        ("sample-repeated", [1, 1, 1, 1, 1, 1, 2, 0]),
    ],
)
def test_what_a_mean_becomes(name, expected):
    assert coefficients(name) == [EIGHTH * times for times in expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean-of-micro-batch-means", [Fraction(1, 4), 0, Fraction(1, 8), Fraction(1, 8), 0, 0, "3/44", "8/44"]),
        ("mean-of-rank-means", [Fraction(1, 2), 0, "2/30", "2/30", 0, 0, "3/30", "8/30"]),
        ("sample-weights-ignored", [EIGHTH] * 8),
        ("sample-dropped", ["1/16", 0, "2/16", "2/16", 0, 0, "3/16", 0]),
        ("not-synchronised", [1, 0, 0, 0, 0, 0, 0, 0]),
        ("never-predicted-counted", ["1/24", 0, "2/24", "2/24", 0, 0, "3/24", "8/24"]),
    ],
)
def test_what_a_weighted_mean_becomes(name, expected):
    assert coefficients(name, WEIGHTED) == [Fraction(value) for value in expected]


def test_a_short_window_divided_by_the_nominal_length():
    short = replace(WORKLOAD, batches=(WORKLOAD.batches[0], WORKLOAD.batches[1][:4]))
    assert coefficients("nominal-length", short, window=0) == [EIGHTH] * 8
    assert coefficients("nominal-length", short, window=1) == [EIGHTH] * 4
    right = Recurrence(Problem(short, Layout(2, 2, 2), PRECISIONS["fp32"]))
    assert list(right.coefficients(right.problem.windows[1])) == [Fraction(1, 4)] * 4


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("counts-all-windows", [1, 1, "1/3", "2/5", "1/8"]),
        ("counts-windows-of-epoch", [1, 1, "1/3", 1, "1/5"]),
        ("counts-whole-epoch", ["2/5", "2/5", "1/5", "2/5", "1/5"]),
        ("counts-window-before", [1, 1, "1/3", "2/3", "1/3"]),
        ("counts-end-of-epoch", [1, 1, 1, "2/3", 1]),
        ("counts-skipped-windows", [1, 1, 1, 1, "1/3"]),
    ],
)
def test_what_other_windows_add_to_a_divisor(name, factors):
    """Two epochs of two windows and half a window; resumed in window 1, and window 4 is skipped."""
    problem = Problem(*standard("short-epochs", 1, 2), PRECISIONS["fp32"], resumed_at=1)
    recurrence = next(fault.textbook for fault in KNOWN if fault.name == name)(problem)
    stepped = [window for window in problem.windows if window.index != 4]
    assert [sum(recurrence.coefficients(window)) for window in stepped] == [*map(Fraction, factors)]


@pytest.mark.parametrize(
    ("over", "multiples"), [("samples", [24, 12]), ("micro-batches", [2, 4]), ("ranks", [2, Fraction(1, 2)])]
)
def test_what_a_threshold_is_compared_with(over, multiples):
    workload, layout = standard("clip-value", 2, 2)
    problem = Problem(workload, layout, PRECISIONS["fp32"])
    textbooks = [fault.textbook for fault in KNOWN if fault.name == f"clips-before-average-over-{over}"]
    for textbook, multiple in zip(textbooks, multiples, strict=True):
        clip = replace(workload.clip, threshold=workload.clip.threshold / multiple)
        right = next(Recurrence(replace(problem, workload=replace(workload, clip=clip))).steps())
        assert next(textbook(problem).steps()).gradient.center == right.gradient.center


@pytest.mark.parametrize(
    ("name", "lengths"), [("counts-on-in-next-epoch", [2, 2, 1, 1, 2, 2]), ("adds-what-is-left", [2, 2, 3, 2])]
)
def test_epochs_of_five_micro_batches_in_windows_of_two(name, lengths):
    problem = Problem(*standard("short-epochs", 1, 2), PRECISIONS["fp32"])
    windows = FAULTS[name].textbook(problem).read()
    assert [window.length for window in windows] == lengths
    assert [window.samples[at] for window in windows for at in window.shares[0][0]][:16] == list(range(16))


def test_earlier_micro_batches_that_are_averaged_with_zeros_again():
    """Half of the ranks have two micro-batches of two samples left. The average of the first is halved twice."""
    short = replace(WORKLOAD, batches=(WORKLOAD.batches[0], WORKLOAD.batches[1][:4]))
    problem = Problem(short, Layout(2, 2, 2, in_whole_shares=True), PRECISIONS["fp32"])
    recurrence = FAULTS["averaged-again"].textbook(problem)
    full, last = problem.windows
    assert list(recurrence.coefficients(full)) == [EIGHTH] * 8
    assert list(recurrence.coefficients(last)) == [Fraction(1, 16)] * 2 + [EIGHTH] * 2
    summed = FAULTS["sum-over-ranks"].textbook(problem)
    assert list(summed.coefficients(last)) == [Fraction(1, 4)] * 4


def first_step(name, workload, precision="fp32", steps=1):
    layout = Layout(2, 2, 2)
    textbook = Recurrence if name is None else FAULTS[name].textbook
    return [*textbook(Problem(workload, layout, PRECISIONS[precision])).steps()][steps - 1]


def test_faults_of_the_optimizer():
    right = first_step(None, WORKLOAD)
    [gradient], [weight] = right.gradient.center, right.weights.center
    assert weight == 1 - gradient / 2
    assert first_step("ascends", WORKLOAD).weights.center == (1 + gradient / 2,)
    assert first_step("steps-twice", WORKLOAD).weights.center == (1 - gradient,)
    assert first_step("scale-left-in", WORKLOAD, "fp16").gradient.center == (gradient * 128,)
    decaying = replace(WORKLOAD, optimizer=SGD(Fraction(1, 2), weight_decay=Fraction(1, 4)))
    assert first_step(None, decaying).weights.center == (weight - EIGHTH,)
    assert first_step("no-weight-decay", decaying).weights.center == (weight,)
    assert first_step("weight-decay-twice", decaying).weights.center == (weight - 2 * EIGHTH,)


def test_faults_of_clipping():
    parts = [sum(2 * (s.x[0] * 1 - s.y) * s.x[0] for s in WORKLOAD.batches[0][i : i + 2]) / 2 for i in (0, 2, 4, 6)]
    assert parts == sorted(parts)
    threshold = Fraction(200)
    assert parts[1] < threshold < parts[2]
    clipping = replace(WORKLOAD, clip=Clip("value", threshold))
    assert first_step(None, clipping).gradient.center == (min(threshold, sum(parts) / 4),)
    assert first_step("not-clipped", clipping).gradient.center == (sum(parts) / 4,)
    assert first_step("clip-before-unscale", clipping, "fp16").gradient.center == (threshold / 128,)
    ranks = [(parts[0] + parts[2]) / 2, (parts[1] + parts[3]) / 2]
    assert first_step("clip-before-all-reduce", clipping).gradient.center == (
        sum(min(threshold, rank) for rank in ranks) / 2,
    )
    windows = [(parts[0] + parts[1]) / 2, (parts[2] + parts[3]) / 2]
    assert first_step("clip-per-micro-batch", clipping).gradient.center == (
        sum(min(threshold, micro_batch) for micro_batch in windows) / 2,
    )


def test_faults_of_the_schedule_and_of_momentum():
    scheduled = replace(WORKLOAD, schedule=(Fraction(1), Fraction(1, 2)))
    longer = replace(scheduled, batches=WORKLOAD.batches * 2, schedule=tuple(map(Fraction, (8, 4, 2, 1))))
    layout = Layout(2, 2, 2)
    problem = Problem(longer, layout, PRECISIONS["fp32"])
    rates = {
        name: [FAULTS[name].textbook(problem).learning_rate(step) for step in range(4)]
        for name in ("schedule-per-micro-batch", "schedule-ignored")
    }
    assert rates == {
        "schedule-per-micro-batch": [4, 1, Fraction(1, 2), Fraction(1, 2)],
        "schedule-ignored": [4, 4, 4, 4],
    }
    heavy = replace(WORKLOAD, optimizer=SGD(Fraction(1, 2), momentum=Fraction(1, 2)))
    assert first_step("momentum-lost", heavy, steps=2) == first_step(None, WORKLOAD, steps=2)
    assert first_step(None, heavy, steps=2) != first_step(None, WORKLOAD, steps=2)


def test_the_catalogue_names_each_fault_once_and_says_what_it_does():
    assert len(FAULTS) == len(CATALOGUE) >= 20
    for fault in CATALOGUE:
        assert fault.text[0].islower()
        assert not fault.text.endswith(".")


def test_all_pairs_of_faults_can_be_made():
    names = {(one.name, two.name) for one, two in pairs(CATALOGUE) if deviating((one, two))}
    assert ("optimizer-state-not-restored", "schedule-not-restored") in names
    assert ("optimizer-state-not-restored", "weights-alone-restored") not in names


@cache
def at(workload_name, shape, precision, *resumed):
    problem = Problem(*standard(workload_name, *shape), PRECISIONS[precision], *resumed)
    return problem, Recurrence(problem).run()


@every_fault
def test_every_fault_applies_somewhere_and_is_told_apart_there(name):
    fault = FAULTS[name]
    for place in PLACES:
        problem, right = at(*place)
        resumed = place[3:]
        if not fault.applies(problem):
            continue
        wrong = fault.textbook(problem, right.history)
        # A resumed run may have more or fewer steps, and one that takes short windows on has fewer.
        has_as_many = not resumed and not issubclass(fault.textbook, AddsWhatIsLeft)
        gaps = [separation(one, other) for one, other in zip(right.steps, wrong.steps(), strict=has_as_many)]
        assert any(gap > 1 for gap in gaps)
        return
    pytest.fail(f"{name} applies nowhere")


@pytest.mark.parametrize(
    ("name", "workload", "shape"),
    [
        ("sum-over-ranks", "momentum", (1, 1)),
        ("sum-over-window", "momentum", (2, 1)),
        *(
            (name, "momentum", (2, 2))
            for name in ("scale-left-in", "not-clipped", "mean-of-rank-means", "nominal-length")
        ),
        ("loss-summed", "momentum", (1, 0)),
        ("momentum-lost", "adamw", (2, 2)),
        ("eps-under-root-of-moment", "adamw", (2, 2)),
        ("clip-between-backwards", "frozen-clip-value", (2, 2)),
        ("total-of-window-before", "momentum", (2, 2)),
        ("state-lost-when-rate-changes", "clip-value", (2, 2)),
        ("decay-per-micro-batch", "adamw", (2, 1)),
    ],
)
def test_a_fault_does_not_apply_where_it_changes_nothing(name, workload, shape):
    problem = Problem(*standard(workload, *shape), PRECISIONS["fp32"])
    assert name not in {fault.name for fault in applicable(problem)}


def step(gradient, weights, radius=0):
    radii = (Fraction(radius),)
    return Step(0, Enclosure((Fraction(gradient),), radii), Enclosure((Fraction(weights),), radii))


def test_separation_is_the_larger_of_both_gaps():
    assert separation(step(1, 1), step(1, 1)) == 0
    assert separation(step(1, 1), step(2, 1)) == inf
    assert separation(step(1, 1, 1), step(2, 4, 1)) == Fraction(3, 2)
    assert separation(step(1, 1, 1), step(5, 1, 1)) == 2


def test_power_is_that_of_the_nearest_fault():
    problem = Problem(*standard("clip-norm", 2, 2), PRECISIONS["fp32"])
    right = Recurrence(problem).run()
    found = power(Reading(None, problem), right)
    assert found.sufficient
    gaps = {}
    for fault in (one for one in applicable(problem) if not one.is_fine(problem)):
        wrong = fault.textbook(problem)
        gaps[fault.name] = [separation(a, b) for a, b in zip(right.steps, wrong.steps(), strict=True)]
    first = {name: next((gap for gap in series if gap > 1), max(series)) for name, series in gaps.items()}
    assert found.gap == min(first.values())
    assert first[found.fault.name] == found.gap


def test_power_looks_no_further_than_asked():
    problem = Problem(*standard("clip-norm", 2, 1), PRECISIONS["fp32"])
    blind = power(Reading(None, problem), Recurrence(problem).run(), limit=4)
    assert not blind.sufficient
    assert blind.fault.name in {"not-clipped", "clip-before-all-reduce"}
    assert blind.gap == 0


@pytest.mark.parametrize(
    ("gap", "enough"), [(inf, True), (Fraction(2), True), (Fraction(1), False), (Fraction(0), False)]
)
def test_power_must_exceed_one(gap, enough):
    assert Power(gap, CATALOGUE[0]).sufficient is enough


def workload(*weights, loss="mean"):
    batch = tuple(Sample((Fraction(n + 1),), Fraction(n * n), Fraction(weight)) for n, weight in enumerate(weights))
    return Workload("numbered", SGD(Fraction(1)), Linear(1), batches=(batch,), start=(Fraction(1),), loss=loss)


@pytest.mark.parametrize(
    ("job", "shape", "expected"),
    [
        (workload(*[1] * 8), (1, 1), [1, 1, 1, 1, 1, 1, 2, 0]),
        (workload(*[1] * 8), (2, 1), [1, 1, 1, 2, 1, 1, 1, 0]),
        (workload(*[1] * 8), (1, 2), [1, 1, 1, 2, 1, 1, 1, 0]),
        (workload(*[1] * 8), (2, 2), [1, 1, 1, 1, 1, 2, 1, 0]),
        (workload(*[1] * 8), (4, 2), [1, 1, 1, 1, 2, 1, 1, 0]),
        # One that weighs nothing is not the one that moves, and a single one has no neighbour.
        (workload(1, 1, 2, 0, loss="weighted"), (2, 1), [1, 3, 0, 0]),
        (workload(1), (1, 1), [1]),
    ],
)
def test_the_last_sample_is_replaced_by_its_neighbours(job, shape, expected):
    layout = Layout.of(job, *shape)
    [window] = layout.windows(job)
    moved = OneSampleMoved(Problem(job, layout, PRECISIONS["fp32"])).coefficients(window)
    assert moved == tuple(Fraction(times, sum(expected)) for times in expected)


def test_the_gradient_differs_and_all_else_is_the_same():
    job = replace(workload(*[1] * 8), schedule=(Fraction(1, 2),))
    layout = Layout.of(job, 2, 2)
    [right] = Recurrence(Problem(job, layout, PRECISIONS["fp64"])).steps()
    [wrong] = OneSampleMoved(Problem(job, layout, PRECISIONS["fp64"])).steps()
    assert right.gradient.center != wrong.gradient.center
    assert wrong.weights.center == (1 - wrong.gradient.center[0] / 2,)
