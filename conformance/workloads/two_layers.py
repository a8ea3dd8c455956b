"""The standard workloads with a product of two matrices: a few steps of small numbers, as products need bits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

from conformance.workloads.certified import Recipe, certified
from conformance.workloads.model import TwoLayers
from conformance.workloads.outliers import last_target
from conformance.workloads.recipes import HALF, QUARTER, SCHEDULE
from conformance.workloads.workload import SGD, Clip, LossScale, Workload

ONE = Fraction(1)
#: What all of them have in common.
_RECIPE = Recipe(
    "",
    "",
    SGD(Fraction(2), momentum=HALF),
    TwoLayers(),
    grid=HALF,
    residual=HALF,
    spread=1,
    largest_weight=2,
    steps=4,
    scale=LossScale(Fraction(2**5)),
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        replace(
            _RECIPE,
            name="two-layers",
            summary="A product of two matrices, the gradient of each of which depends on the other; a schedule.",
            optimizer=SGD(QUARTER),
            schedule=SCHEDULE,
            grid=QUARTER,
            residual=ONE,
            spread=3,
            seed=3,
        ),
        replace(
            _RECIPE,
            name="two-layers-weighted",
            summary="A product of two matrices, and a weighted mean whose weight differs from window to window.",
            weights=(0, 0, 1, 1, 2, 4, 4),
            totals=(HALF, Fraction(2), HALF, HALF),
        ),
        replace(
            _RECIPE,
            name="two-layers-decay",
            summary="A product of two matrices, momentum and weight decay.",
            optimizer=SGD(HALF, momentum=HALF, weight_decay=ONE),
            grid=QUARTER,
            residual=ONE,
            spread=2,
        ),
        replace(
            _RECIPE,
            name="two-layers-clip-value",
            summary="A product of two matrices, and clipping by value that bites in both.",
            optimizer=SGD(ONE, momentum=HALF),
            clip=Clip("value", Fraction(2)),
            spread=3,
        ),
        replace(
            _RECIPE,
            name="two-layers-clip",
            summary="A product of two matrices, and clipping by the norm of both that bites in the third step.",
            optimizer=SGD(HALF, momentum=HALF),
            clip=Clip("norm", Fraction(8)),
            residual=ONE,
            spread=2,
            steeper_at=2,
        ),
        replace(
            _RECIPE,
            name="two-layers-overflow",
            summary="A product of two matrices, and a sample on the last rank that overflows fp16.",
            optimizer=SGD(ONE, momentum=HALF),
            residual=ONE,
            spread=2,
            outliers={1: last_target},
            seed=1,
        ),
    )
}

#: The workloads, each with the global batches that are tried in turn.
BATCH_SIZES: dict[str, tuple[int, ...]] = {**dict.fromkeys(RECIPES, (8, 12)), "two-layers-overflow": (8,)}


@cache
def two_layers(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    return certified(RECIPES[name], batch_size)
