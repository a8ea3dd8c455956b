"""Certified recipes: what the generator promises. That they are exact is shown in tests/oracle and tests/cases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.certified import OUTLIER, STEEPER, Recipe, certified
from conformance.workloads.layout import Layout
from conformance.workloads.precision import PRECISIONS
from conformance.workloads.problem import Problem
from conformance.workloads.recipes import RECIPES, adamw, recipe
from conformance.workloads.workload import SGD, AdamW, Clip

BATCH_SIZES = (16, 18, 24)
every_recipe = pytest.mark.parametrize("name", RECIPES)
#: The core workloads run on layouts that need other batches than 24.
every_workload = pytest.mark.parametrize(
    ("name", "batch_size"),
    [*((name, 24) for name in RECIPES), *((name, size) for name in ("momentum", "clip-value") for size in (16, 18))],
)
every_batch_size = pytest.mark.parametrize("batch_size", BATCH_SIZES)


def trajectory(workload):
    return Recurrence(Problem(workload, Layout.of(workload, "batched"), PRECISIONS["fp64"])).run()


def unclipped(name, batch_size):
    """The recipe's gradients before they are clipped, one per step."""
    workload = recipe(name, batch_size)
    right = trajectory(workload)
    layout = Layout.of(workload, "batched")
    before = [workload.start, *(step.weights.center for step in right.steps)]
    gradients = []
    for window, weights in zip(layout.windows(workload), before, strict=False):
        one_step = replace(workload, start=weights, batches=(window.batch,), clip=None, schedule=None)
        gradients.append(trajectory(one_step).steps[0].gradient.center)
    return gradients


@every_recipe
def test_a_workload_is_always_the_same_one(name):
    assert certified(RECIPES[name], 24) == certified(RECIPES[name], 24) == recipe(name, 24)


@every_workload
def test_samples_of_a_batch_are_told_apart_by_their_gradients(name, batch_size):
    """Reading one sample in the place of another must show."""
    workload = recipe(name, batch_size)
    before = [workload.start, *(step.weights.center for step in trajectory(workload).steps)]
    for batch, weights in zip(workload.batches, before, strict=False):
        if any(sample.y == OUTLIER for sample in batch):
            break  # In fp16 this window is skipped; the later ones assume that.
        gradients = []
        for sample in batch:
            row = (*sample.x, Fraction(1)) if workload.bias else sample.x
            residual = sum(x * w for x, w in zip(row, weights, strict=True)) - sample.y
            gradients.append(tuple(sample.weight * residual * x for x in row))
        telling = [gradient for gradient in gradients if any(gradient)]
        assert len(set(telling)) == len(telling)
        assert len(telling) == sum(sample.weight != 0 for sample in batch)


@every_workload
def test_weights_move_in_every_step_and_stay_on_their_grid(name, batch_size):
    workload, ingredients = recipe(name, batch_size), RECIPES[name]
    last = ingredients.overflow_at if ingredients.overflow_at is not None else ingredients.steeper_at
    visited = [workload.start, *(step.weights.center for step in trajectory(workload).steps[:last])]
    for before, after in pairwise(visited):
        assert before != after
        assert all(after)
        assert all((weight / ingredients.grid).denominator == 1 for weight in after)
        assert max(map(abs, after)) <= ingredients.largest_weight


@every_batch_size
def test_clipping_by_value_bites_in_the_first_step(batch_size):
    threshold = RECIPES["clip-value"].clip.threshold
    first, *_ = unclipped("clip-value", batch_size)
    assert max(map(abs, first)) > threshold


def test_clipping_by_norm_bites_in_one_step_and_not_before():
    ingredients = RECIPES["clip-norm"]
    norms = [sum(entry**2 for entry in gradient) for gradient in unclipped("clip-norm", 24)]
    threshold = ingredients.clip.threshold**2
    assert all(norm < threshold / 4 for norm in norms[: ingredients.steeper_at])
    assert norms[ingredients.steeper_at] > 4 * threshold
    assert STEEPER > 1


def test_weighted_batches_weigh_as_much_as_they_have_samples_and_some_weigh_nothing():
    for batch in recipe("weighted", 24).batches:
        weights = [sample.weight for sample in batch]
        assert sum(weights) == 24
        assert 0 in weights
        assert weights == sorted(weights)
        assert sum(weights[:12]) < sum(weights[12:])


def test_the_outlier_is_the_last_sample_of_one_batch():
    workload = recipe("overflow", 24)
    outliers = [
        (step, index)
        for step, batch in enumerate(workload.batches)
        for index, sample in enumerate(batch)
        if sample.y == OUTLIER
    ]
    assert outliers == [(RECIPES["overflow"].overflow_at, 23)]


def test_a_short_last_batch_is_as_short_as_asked():
    sizes = [len(batch) for batch in recipe("short-window", 24, 12).batches]
    assert sizes == [24] * 5 + [12]


def test_adamw_trains_on_the_data_of_plain_sgd():
    assert adamw(24).batches == recipe("sgd", 24).batches
    assert isinstance(adamw(24).optimizer, AdamW)


def test_dampening_without_momentum_is_ignored_as_torch_ignores_it():
    workload = certified(Recipe("dampened", "", SGD(Fraction(1, 2), dampening=Fraction(1, 2))), 24)
    assert trajectory(workload).certificate.exact


@pytest.mark.parametrize(
    "impossible",
    [
        {"grid": Fraction(64)},
        {"clip": Clip("value", Fraction(1000))},
        {"weights": (2, 4), "steps": 1},
    ],
    ids=["grid", "clip", "weights"],
)
def test_a_recipe_that_asks_for_too_much_is_refused(impossible):
    asked = replace(RECIPES["sgd"], name="impossible", **impossible)
    with pytest.raises(ValueError, match=r"\Aworkload impossible: no "):
        certified(asked, 4)
