"""Designed workloads: guarantees of the design. tests/cases shows that they are exact where they should be."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from conformance.oracle.accepted_readings import readings
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.workloads.designed import Design, hadamard
from conformance.workloads.designs import DESIGNS, ENDS
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.registry import made
from conformance.workloads.workload import SGD, Clip

every_design = pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name in DESIGNS for size in DESIGNS[name].batch_sizes]
)


def problem(workload, precision="fp64"):
    return Problem(workload, Layout.of(workload), PRECISIONS[precision])


def rows(workload, batch):
    return np.array([[float(value) for value in workload.model.row(sample.x, Fraction(1))] for sample in batch])


def windows(name, size):
    """For each stepped window: its batch, and the weights before and after it."""
    workload = made(name, size)
    right = Recurrence(problem(workload, "fp16" if DESIGNS[name].outliers else "fp64")).run()
    weights = [workload.start, *(step.weights.center for step in right.steps)]
    batches = [workload.batches[step.window % len(workload.batches)] for step in right.steps]
    return [(workload, batch, *moved) for batch, moved in zip(batches, pairwise(weights), strict=True)]


@pytest.mark.parametrize("size", [2, 4, 6, 8, 12, 16, 20, 24, 32, 36])
def test_the_columns_of_a_hadamard_matrix_are_orthogonal(size):
    if size in (6, 36):
        with pytest.raises(ValueError, match=f"no construction here gives a Hadamard matrix of {size} rows"):
            hadamard(size)
        return
    matrix = hadamard(size)
    assert (matrix.T @ matrix == size * np.eye(size)).all()
    assert (matrix[:, 0] == 1).all()


@pytest.mark.parametrize(("name", "size"), [("many-tensors", 24), ("unused", 32)])
def test_a_workload_is_always_the_same_one(name, size):
    assert DESIGNS[name].build(size) == made(name, size)


@every_design
def test_each_gradient_depends_on_its_own_element_alone(name, size):
    workload = made(name, size)
    for number, batch in enumerate(workload.batches):
        if number in DESIGNS[name].outliers:
            continue
        matrix, weights = rows(workload, batch), np.array([float(sample.weight) for sample in batch])
        products = matrix.T @ (weights[:, None] * matrix)
        assert (products == np.diag(np.diag(products))).all()
        of_elements = zip(workload.model.is_used, workload.model.tensor_of, strict=True)
        uses = [is_used and workload.uses(tensor, batch) for is_used, tensor in of_elements]
        assert (np.diag(products) != 0).tolist() == uses


@pytest.mark.parametrize(("accumulation", "window"), [(1, 0), (2, 1)])
def test_each_rank_uses_a_row_of_the_embedding_that_the_other_does_not(accumulation, window):
    workload = made("many-tensors", 32)
    shares = Layout.of(workload, 2, accumulation).window(workload, window).shares
    used = [{workload.batches[window][index].x[6] for part in share for index in part} for share in shares]
    assert used == [{0}, {1}]


@pytest.mark.parametrize(
    ("name", "size"),
    # After the first clip by norm, nothing is on a grid.
    [(name, size) for name in DESIGNS for size in DESIGNS[name].batch_sizes if not name.endswith("clip-norm")],
)
def test_no_residual_is_zero_in_any_epoch(name, size):
    """A sample with residual zero could be omitted."""
    for workload, batch, before, _ in windows(name, size):
        for row, sample in zip(rows(workload, batch), batch, strict=True):
            assert sum(Fraction(x) * w for x, w in zip(row, before, strict=True)) != sample.y


@every_design
def test_every_element_moves_in_half_of_the_windows(name, size):
    """Half of the windows that use it."""
    workload = made(name, size)
    moved, used = [], []
    for _, batch, before, after in windows(name, size):
        moved.append([one != other for one, other in zip(before, after, strict=True)])
        used.append([workload.uses(tensor, batch) for tensor in workload.model.tensor_of])
    frozen = [workload.model.tensors[tensor].frozen for tensor in workload.model.tensor_of]
    of_elements = zip(*(zip(*rows, strict=True) for rows in (moved, used)), workload.model.is_used, frozen, strict=True)
    trained = [(own, uses) for own, uses, is_used, is_frozen in of_elements if is_used and not is_frozen]
    assert trained
    assert all(2 * sum(own) >= sum(uses) for own, uses in trained)
    assert all(map(any, moved))


@pytest.mark.parametrize(("accumulation", "window"), [(1, 0), (2, 1)])
def test_some_windows_use_an_expert_on_one_rank_or_on_none(accumulation, window):
    workload = made("unused", 32)
    planned = Layout.of(workload, 2, accumulation).windows(workload)
    last = len(workload.model.tensors) - [tensor.block for tensor in workload.model.tensors][::-1].index(1) - 1
    users = [
        [workload.uses(last, [one.batch[index] for part in share for index in part]) for share in one.shares]
        for one in planned
    ]
    assert users[window] == [False, True]
    assert [False, False] in users
    assert [True, True] in users


@pytest.mark.parametrize("name", [name for name in DESIGNS if "unused" in name])
def test_it_shows_whether_what_is_not_used_moves(name):
    precision = "fp16" if DESIGNS[name].outliers else "fp32"
    skipped, moved = (
        reading.recurrence().run()
        for reading in readings(problem(made(name, DESIGNS[name].batch_sizes[0]), precision))[:2]
    )
    assert any(
        one.weights.center != other.weights.center for one, other in zip(skipped.steps, moved.steps, strict=True)
    )


@every_design
def test_a_batch_comes_back_with_other_gradients(name, size):
    """Otherwise the second epoch would show nothing new."""
    workload = made(name, size)
    right, batches = Recurrence(problem(workload)).run(), len(workload.batches)
    assert len(right.steps) == 2 * batches
    for first, second in zip(right.steps[:batches], right.steps[batches:], strict=True):
        assert first.gradient.center != second.gradient.center


@pytest.mark.parametrize("size", [32, 24])
def test_clipping_by_value_changes_every_other_element(size):
    workload = made("many-clip-value", size)
    clipped, unclipped = (
        Recurrence(problem(one)).run().steps for one in (workload, replace(workload, clip=Clip("value", Fraction(99))))
    )
    bitten = set()
    for one, other in zip(clipped, unclipped, strict=True):
        pairs = zip(one.gradient.center, other.gradient.center, strict=True)
        bitten |= {number for number, (kept, whole) in enumerate(pairs) if kept != whole}
    assert bitten == set(range(0, workload.model.size, 2))


def test_weight_decay_alone_moves_what_the_model_does_not_use():
    workload = made("large-tensors", 32)
    for step in Recurrence(problem(workload)).run().steps:
        rest = [number for number, is_used in enumerate(workload.model.is_used) if not is_used]
        assert {step.gradient.center[number] for number in rest} == {0}
        assert 0 < step.weights.center[rest[0]] < workload.start[rest[0]]


def test_clipping_by_norm_bites_in_some_steps_only():
    """If all gradients are clipped, their scale does not show."""
    workload = made("many-clip-norm", 32)
    right = Recurrence(problem(replace(workload, clip=None))).run()
    norms = [sum(entry**2 for entry in step.gradient.center) for step in right.steps]
    assert min(norms) < workload.clip.threshold**2 < max(norms)


@pytest.mark.parametrize("size", [64, 48])
def test_windows_weigh_different_amounts_and_so_do_their_parts(size):
    batches = made("many-weighted", size).batches
    assert len({sum(sample.weight for sample in batch) for batch in batches}) > 1
    for batch in batches:
        quarters = [sum(sample.weight for sample in batch[i * size // 4 : (i + 1) * size // 4]) for i in range(4)]
        assert len(set(quarters)) > 1


@pytest.mark.parametrize(
    ("impossible", "size", "message"),
    [
        ({}, 12, "no construction here gives a Hadamard matrix of 6 rows"),
        ({}, 16, "18 elements are too many for 16 samples"),
        ({"optimizer": SGD(Fraction(1, 512))}, 32, "no course of gain stays on its grid"),
        ({"model": Linear(3, bias=True), "short": Fraction(1, 2)}, 32, "4 elements cannot tell all samples apart"),
    ],
)
def test_an_impossible_design(impossible, size, message):
    with pytest.raises(ValueError, match=message):
        replace(DESIGNS["many-tensors"], name="impossible", **impossible).build(size)


def test_a_linear_model_can_be_designed_too():
    workload = Design("line", "A line.", SGD(Fraction(1, 2)), Linear(3, bias=True)).build(16)
    assert Recurrence(problem(workload, "bf16")).run().certificate.exact


@pytest.mark.parametrize("shape", [(2, 2), (4, 1)])
def test_one_element_alone_overflows_that_the_first_rank_does_not_hold(shape):
    """With any divisor of the loss, and only in the last micro-batch of the first epoch's second window."""
    workload = made("many-shards-overflow", 32)
    layout = Layout.of(workload, *shape)
    skipping = Recurrence(Problem(workload, layout, PRECISIONS["fp16"]), ScalerHistory(frozenset({1, 4}))).run()
    model, largest = workload.model, PRECISIONS["fp16"].compute.largest
    window = layout.window(workload, 1)
    for share in window.shares:
        for places in share:
            samples = [window.batch[place] for place in places]
            rows = [model.row(sample.x, Fraction(1)) for sample in samples]
            errors = [
                sum(w * x for w, x in zip(skipping.steps[0].weights.center, row, strict=True)) - sample.y
                for row, sample in zip(rows, samples, strict=True)
            ]
            gradients = [
                abs(sum(2 * 32 * e * x for e, x in zip(errors, column, strict=True)))
                for column in zip(*rows, strict=True)
            ]
            is_last = len(window.batch) - 1 in places
            assert [at for at, gradient in enumerate(gradients) if gradient > largest] == ([5] if is_last else [])
            # The scale is half as large after an overflow.
            assert not is_last or gradients[5] / 2 / workload.batch_size > largest
    # By rows over two or four ranks, in equal parts of four, and of whole parameters, by any of these.
    assert model.elements[5] == "cube[1, 0, 0]" and 5 // -(-model.size // 4) == 1 and model.tensor_of[5] % 2 == 1


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in ENDS for size in ENDS[name].batch_sizes])
def test_a_trace_shows_which_samples_were_read_at_the_end_of_an_epoch(name, size):
    """Otherwise the samples that fill up a last window, and the window of a micro-batch, would be guesses."""
    samples = [sample.x for batch in made(name, size).batches for sample in batch]
    assert len(set(samples)) == len(samples)
