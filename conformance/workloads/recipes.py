"""The standard certified workloads: each shows bugs that plain SGD on a plain mean hides."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

from conformance.workloads.certified import Recipe, certified
from conformance.workloads.workload import SGD, AdamW, Clip, LossScale, Workload

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
#: One multiplier per optimizer step: it goes up and down, so that an offset of one step always shows.
SCHEDULE = (Fraction(1), HALF, Fraction(1), HALF, HALF, Fraction(1), HALF, Fraction(1))

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("sgd", "Plain SGD; a model with a bias.", SGD(HALF), features=2, bias=True, spread=3, seed=2),
        Recipe("momentum", "Momentum and a learning-rate schedule.", SGD(HALF, momentum=HALF), schedule=SCHEDULE),
        Recipe(
            "clip-value",
            "Nesterov momentum and clipping by value that bites.",
            SGD(Fraction(1), momentum=HALF, nesterov=True),
            clip=Clip("value", Fraction(1)),
            seed=1,
            grid=Fraction(1, 8),
            largest_weight=2,
        ),
        Recipe(
            "decay",
            "Momentum with dampening, and weight decay.",
            SGD(HALF, momentum=HALF, dampening=HALF, weight_decay=QUARTER),
            grid=Fraction(1, 8),
            residual=Fraction(1, 8),
            spread=3,
            largest_weight=2,
        ),
        Recipe(
            "weighted",
            "A weighted mean over the global batch, with weights of zero; momentum.",
            SGD(HALF, momentum=HALF),
            weights=(0, 0, 0, 1, 1, 2, 3),
            seed=5,
        ),
        Recipe(
            "overflow",
            "One sample on the last rank overflows fp16: all ranks must skip that step together.",
            SGD(HALF, momentum=HALF),
            schedule=SCHEDULE,
            scale=LossScale(Fraction(2**7), growth_interval=3),
            overflow_at=2,
        ),
        Recipe(
            "growing-scale",
            "The loss scale doubles every second step.",
            SGD(HALF, momentum=HALF),
            scale=LossScale(Fraction(2**4), growth_interval=2),
        ),
        Recipe(
            "clip-norm",
            "Clipping by norm that bites in the fifth step only: until then all is exact, then the root rounds.",
            SGD(HALF, momentum=HALF),
            schedule=SCHEDULE,
            clip=Clip("norm", Fraction(4)),
            steeper_at=4,
            largest_weight=8,
            scale=LossScale(Fraction(2**5)),
        ),
        Recipe("short-window", "The last accumulation window is short.", SGD(HALF, momentum=HALF)),
        Recipe("uneven-batch", "The last micro-batch is smaller than the others.", SGD(HALF, momentum=HALF)),
        Recipe(
            "ranks-start-apart",
            "Ranks hold different weights until a broadcast makes them one.",
            SGD(HALF, momentum=HALF),
            ranks_start_apart=True,
        ),
    )
}


@cache
def recipe(name: str, batch_size: int, short: int | None = None) -> Workload:
    """The certified workload ``name`` with global batches of ``batch_size`` samples, the last of ``short`` if given.

    Raises:
        KeyError: no such recipe.
    """
    return certified(replace(RECIPES[name], short=short), batch_size)


def adamw(batch_size: int) -> Workload:
    """The data of the plain SGD workload with AdamW, which rounds in its square root and quotient."""
    return replace(
        recipe("sgd", batch_size),
        name="adamw",
        optimizer=AdamW(lr=Fraction(1, 8), weight_decay=Fraction(1, 8)),
        scale=LossScale(Fraction(2**5)),
        summary="AdamW with decoupled weight decay; judged by its rounding-error bound.",
    )
