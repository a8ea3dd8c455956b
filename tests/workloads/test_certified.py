"""Certified recipes: guarantees of the generator. tests/oracle and tests/cases show that they are exact."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.oracle.rounding import nearest
from conformance.workloads.certified import Recipe
from conformance.workloads.layout import Layout
from conformance.workloads.outliers import FAR, INFINITELY_FAR, is_outlier
from conformance.workloads.precision import BF16, FP16, FP32, FP64, PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.recipes import RECIPES
from conformance.workloads.registry import made
from conformance.workloads.workload import SGD, Clip

#: The core workloads run on layouts that need batches other than 24.
every_workload = pytest.mark.parametrize(
    ("name", "batch_size"),
    [*((name, 24) for name in RECIPES), *((name, size) for name in ("momentum", "clip-value") for size in (16, 18))],
)


def trajectory_in(workload, precision):
    return Recurrence(Problem(workload, Layout.of(workload), PRECISIONS[precision.name])).run()


def trajectory(workload):
    """In the format of its design: all except the cast weights are exact in fp64."""
    return trajectory_in(workload, FP16 if workload.name == "cast-weights" else FP64)


def unclipped(name, batch_size):
    """The recipe's gradients before they are clipped, one per step."""
    workload = made(name, batch_size)
    right = trajectory(workload)
    layout = Layout.of(workload)
    before = [workload.start, *(step.weights.center for step in right.steps)]
    gradients = []
    for window, weights in zip(layout.windows(workload), before, strict=False):
        one_step = replace(workload, start=weights, batches=(window.batch,), clip=None, schedule=None)
        gradients.append(trajectory(one_step).steps[0].gradient.center)
    return gradients


@pytest.mark.parametrize("name", ["momentum", "weighted"])
def test_a_workload_is_always_the_same_one(name):
    assert RECIPES[name].build(24) == made(name, 24)


@every_workload
def test_samples_of_a_batch_are_told_apart_by_their_gradients(name, batch_size):
    """Reading one sample instead of another must show."""
    workload = made(name, batch_size)
    before = [workload.start, *(step.weights.center for step in trajectory(workload).steps)]
    for step, (batch, weights) in enumerate(zip(workload.batches, before, strict=False)):
        if step in RECIPES[name].outliers:
            break  # In fp16 this window is skipped; the later ones assume that.
        gradients = []
        for sample in batch:
            row = workload.model.row(sample.x, Fraction(1))
            residual = sum(x * w for x, w in zip(row, weights, strict=True)) - sample.y
            gradients.append(tuple(sample.weight * residual * x for x in row))
        telling = [gradient for gradient in gradients if any(gradient)]
        assert len(set(telling)) == len(telling)
        assert len(telling) == sum(sample.weight != 0 for sample in batch)


@every_workload
def test_weights_move_in_every_step_and_stay_on_their_grid(name, batch_size):
    workload, ingredients = made(name, batch_size), RECIPES[name]
    last = min((*ingredients.outliers, *ingredients.steeper_at), default=None)
    visited = [workload.start, *(step.weights.center for step in trajectory(workload).steps[:last])]
    for before, after in pairwise(visited):
        assert before != after
        assert all(after)
        coarse = [after[0], *(weight - ingredients.fine for weight in after[1:])]
        assert all((weight / ingredients.grid).denominator == 1 for weight in coarse)
        assert max(map(abs, coarse)) <= ingredients.largest_weight


@pytest.mark.parametrize("batch_size", [16, 18, 24])
def test_clipping_by_value_bites_in_the_first_step(batch_size):
    first, *_ = unclipped("clip-value", batch_size)
    assert max(map(abs, first)) > RECIPES["clip-value"].clip.threshold


def test_clipping_bites_in_a_short_window_and_does_not_hide_a_wrong_divisor():
    """By value in some entry of each parameter; by norm unless the gradient is half as large."""
    *_, by_value = unclipped("short-clip-value", 24)
    limit = RECIPES["short-clip-value"].clip.threshold
    assert max(map(abs, by_value[:-1])) > limit < abs(by_value[-1])
    assert min(map(abs, by_value)) <= limit
    *_, by_norm = unclipped("short-clip-norm", 24)
    norm = sum(entry**2 for entry in by_norm)
    assert norm / 4 < RECIPES["short-clip-norm"].clip.threshold ** 2 < norm


def test_clipping_by_norm_bites_in_one_step_and_not_before():
    ingredients = RECIPES["clip-norm"]
    norms = [sum(entry**2 for entry in gradient) for gradient in unclipped("clip-norm", 24)]
    threshold, [steeper_at] = ingredients.clip.threshold**2, ingredients.steeper_at
    assert all(norm < threshold / 4 for norm in norms[:steeper_at])
    assert norms[steeper_at] > 4 * threshold


def groups(batch):
    """The weights of the smallest micro-batches of weighted batches."""
    return [sum(sample.weight for sample in batch[start : start + 4]) for start in range(0, 24, 4)]


@pytest.mark.parametrize("name", ["weighted", "weightless"])
def test_weights_differ_from_window_to_window_and_whole_micro_batches_weigh_nothing_only_where_asked(name):
    """No window's weight equals its number of samples, and some samples weigh nothing."""
    ingredients, batches = RECIPES[name], made(name, 24).batches
    assert [sum(sample.weight for sample in batch) for batch in batches] == [12, 48, 12, 12, 48, 12]
    for step, batch in enumerate(batches):
        assert 0 in [sample.weight for sample in batch]
        halves_are_empty = [not any(groups(batch)[:3]), not any(groups(batch)[3:])]
        assert halves_are_empty == [step == ingredients.first_half_empty_at, step == ingredients.last_half_empty_at]
        if any(halves_are_empty):
            assert groups(batch).count(0) == 3
        else:
            assert all(groups(batch))
            assert sum(groups(batch)[:3]) < sum(groups(batch)[3:])
    # So in each layout the micro-batch before which gradients are cleared weighs nothing, as does one that averages.
    empty = {ingredients.first_half_empty_at, ingredients.last_half_empty_at}
    assert name == "weighted" or (None not in empty and len(empty) == 2)


@pytest.mark.parametrize(
    ("name", "fits", "too_small"), [("fine-data", FP32, (FP16, BF16)), ("finer-data", FP64, (FP32, FP16, BF16))]
)
def test_fine_data_fit_a_format_and_no_smaller_one(name, fits, too_small):
    workload = made(name, 24)
    samples = [sample for batch in workload.batches for sample in batch]
    features = [value for sample in samples for value in sample.x]
    for values in (workload.start, features, [sample.y for sample in samples]):
        assert all(map(fits.holds, values))
        assert not any(all(map(fmt.holds, values)) for fmt in too_small)


@pytest.mark.parametrize(
    ("name", "fits", "too_small"),
    [("fine-gradients", FP32, (FP16, BF16)), ("finer-gradients", FP64, (FP32, FP16, BF16))],
)
def test_fine_gradients_and_their_momentum_fit_a_format_and_no_smaller_one(name, fits, too_small):
    workload = made(name, 24)
    buffer = [Fraction(0)] * workload.model.size
    for step in trajectory_in(workload, fits).steps:
        gradient = step.gradient.center
        buffer = [workload.optimizer.momentum * old + new for old, new in zip(buffer, gradient, strict=True)]
        for values in (gradient, buffer):
            assert all(map(fits.holds, values))
            assert not any(all(map(fmt.holds, values)) for fmt in too_small)


def test_a_cast_changes_the_weights_of_one_workload_and_takes_them_to_the_grid():
    workload = made("cast-weights", 24)
    for fmt in (FP16, BF16):
        for step in trajectory_in(workload, fmt).steps:
            cast = [nearest(weight, fmt) for weight in step.weights.center]
            assert tuple(cast) != step.weights.center
            assert all((weight / RECIPES["cast-weights"].grid).denominator == 1 for weight in cast)


@every_workload
def test_outliers_are_where_asked_and_nowhere_else(name, batch_size):
    for step, batch in enumerate(made(name, batch_size).batches):
        assert any(map(is_outlier, batch)) == (step in RECIPES[name].outliers)


@pytest.mark.parametrize(
    ("name", "outliers"), [("overflow", {23: -FAR}), ("infinite-loss", {0: -INFINITELY_FAR, 1: INFINITELY_FAR})]
)
def test_outliers_are_the_last_or_the_first_samples(name, outliers):
    """On the last rank in its last micro-batch, or on the first in its first, where their gradients are NaN."""
    assert {at: one.y for at, one in enumerate(made(name, 24).batches[2]) if abs(one.y) >= FAR} == outliers


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 2)])
def test_a_part_of_the_gradients_overflows_and_the_other_is_zero(shape):
    """In one micro-batch, with several ranks not of the first, at the loss scale of that window."""
    workload = made("overflow-in-part", 24)
    layout = Layout.of(workload, *shape)
    skipping = Recurrence(Problem(workload, layout, PRECISIONS["fp16"]), ScalerHistory(frozenset({2, 5}))).run()
    before = [workload.start, *(step.weights.center for step in skipping.steps)]
    for window, weights, scale, overflows in (
        (layout.window(workload, 2), before[2], 32, (True, False)),
        (layout.window(workload, 5), before[4], 16, (False, True)),
    ):
        seen = {}
        for rank, share in enumerate(window.shares):
            for micro_batch in share:
                rows = [(*window.batch[index].x, Fraction(1)) for index in micro_batch]
                errors = [
                    sum(x * w for x, w in zip(row, weights, strict=True)) - window.batch[index].y
                    for row, index in zip(rows, micro_batch, strict=True)
                ]
                # As in DDP: the mean over the rank's samples.
                terms = [2 * scale * layout.world_size * error / 24 for error in errors]
                assert all(abs(term) < FP16.largest for term in terms)
                sums = [sum(term * row[j] for term, row in zip(terms, rows, strict=True)) for j in range(4)]
                if any(terms):
                    seen[rank] = max(map(abs, sums[:3])), abs(sums[3])
        [(rank, of_parts)] = seen.items()
        assert (rank > 0) == (layout.world_size > 1)
        assert tuple(part > 2**16 for part in of_parts) == overflows
        assert 0 in of_parts


def test_dampening_without_momentum_is_ignored_as_torch_ignores_it():
    workload = Recipe("dampened", "", SGD(Fraction(1, 2), dampening=Fraction(1, 2))).build(24)
    assert trajectory(workload).certificate.exact


@pytest.mark.parametrize(
    "impossible",
    [{"grid": Fraction(64)}, {"clip": Clip("value", Fraction(1000))}, {"weights": (2, 4), "steps": 1}],
    ids=["grid", "clip", "weights"],
)
def test_a_recipe_that_asks_for_too_much_is_refused(impossible):
    asked = replace(RECIPES["sgd"], name="impossible", **impossible)
    with pytest.raises(ValueError, match=r"\Aworkload impossible: no "):
        asked.build(4)
