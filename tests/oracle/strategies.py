"""Random workloads and layouts, small enough to be trained in milliseconds."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import assume
from hypothesis import strategies as st

from conformance.oracle.rounding import odd_part
from conformance.workloads.certified import Recipe
from conformance.workloads.layout import Layout
from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD, Clip, LossScale, Sample, Workload

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)

Job = tuple[Workload, Layout]


@st.composite
def shapes(draw: st.DrawFn, largest_batch: int = 36) -> tuple[int, int, int]:
    """(world size, accumulation, micro-batch size)."""
    world, accumulation, size = draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6)))
    assume(1 < world * accumulation * size <= largest_batch)
    return world, accumulation, size


def _layout(workload: Workload, world: int, accumulation: int) -> Layout:
    return Layout.of(workload, world, accumulation)


@st.composite
def dyadic_sgd(draw: st.DrawFn) -> SGD:
    momentum = draw(st.sampled_from([Fraction(0), HALF, QUARTER]))
    nesterov = bool(momentum) and draw(st.booleans())
    return SGD(
        lr=draw(st.sampled_from([Fraction(1), HALF, QUARTER, Fraction(3, 8)])),
        momentum=momentum,
        nesterov=nesterov,
        dampening=Fraction(0) if nesterov else draw(st.sampled_from([Fraction(0), HALF])),
        weight_decay=draw(st.sampled_from([Fraction(0), QUARTER])),
    )


@st.composite
def dyadic_jobs(draw: st.DrawFn) -> Job:
    """Small dyadic numbers, with residuals in the first step that are multiples of the divisors.

    Nothing keeps later steps exact, so certificates pass and fail at all stages.
    """
    world, accumulation, size = draw(shapes())
    numbers = random.Random(draw(st.integers(0, 2**32)))
    features, weighted = draw(st.integers(1, 3)), draw(st.booleans())
    model = Linear(features, draw(st.booleans()))
    coarse = Fraction(1, 2 ** draw(st.integers(0, 3)))
    lightest, heaviest = draw(st.sampled_from([Fraction(1), HALF, Fraction(1, 64)])), draw(st.integers(1, 7))
    start = tuple(numbers.randint(-8, 8) * coarse for _ in range(model.size))
    batches = []
    for _ in range(draw(st.integers(1, 2))):
        weights = [Fraction(1)] * (world * accumulation * size)
        if weighted:
            weights = [numbers.randint(0, heaviest) * lightest for _ in weights]
            weights[numbers.randrange(len(weights))] = lightest
        odd = odd_part(sum(weights).numerator)
        batch = []
        for weight in weights:
            x = tuple(numbers.choice([-4, -3, -2, -1, 1, 2, 3, 4]) * coarse for _ in range(features))
            row = model.row(x, Fraction(1))
            residual = odd * numbers.randint(-3, 3) * coarse
            y = sum((a * b for a, b in zip(row, start, strict=True)), Fraction(0)) - residual
            batch.append(Sample(x, y, weight))
        batches.append(tuple(batch))
    kind = draw(st.sampled_from([None, None, None, "value", "norm"]))
    workload = Workload(
        name="dyadic",
        batches=tuple(batches),
        optimizer=draw(dyadic_sgd()),
        model=model,
        start=start,
        loss="weighted" if weighted else "mean",
        schedule=draw(st.sampled_from([None, (HALF, Fraction(1))])),
        clip=None if kind is None else Clip(kind, draw(st.sampled_from([HALF, Fraction(3), Fraction(40)]))),
        scale=LossScale(Fraction(2 ** draw(st.integers(0, 8))), growth_interval=draw(st.integers(1, 4))),
    )
    return workload, _layout(workload, world, accumulation)


@st.composite
def recipe_jobs(draw: st.DrawFn) -> Job:
    """Certified recipes with random ingredients."""
    world, accumulation, size = draw(shapes(24))
    optimizer = draw(dyadic_sgd())
    recipe = Recipe(
        name=f"recipe {draw(st.integers(0, 2**16))}",
        summary="",
        optimizer=SGD(**{**vars(optimizer), "lr": draw(st.sampled_from([Fraction(1), HALF]))}),
        model=Linear(draw(st.integers(1, 3)), draw(st.booleans())),
        schedule=draw(st.sampled_from([None, (Fraction(1), HALF, Fraction(1))])),
        clip=draw(st.sampled_from([None, None, Clip("value", HALF)])),
        weights=draw(st.sampled_from([None, None, (0, 1, 2), (0, 0, 1, 2, 3), (1, 5, 0, 0, 0)])),
        grid=Fraction(1, 8),
        residual=draw(st.sampled_from([HALF, QUARTER])),
        scale=LossScale(Fraction(2 ** draw(st.integers(0, 7))), growth_interval=draw(st.integers(1, 4))),
        steps=3,
    )
    try:
        workload = recipe.build(world * accumulation * size)
    except ValueError:
        assume(False)
    return workload, _layout(workload, world, accumulation)
