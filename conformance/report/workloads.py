"""What the report shows of the standard workloads: the exercise and the notebook, in tables and figures."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from markupsafe import Markup

from conformance.oracle.float_descents import descents
from conformance.oracle.normal_form import NormalForm
from conformance.workloads.distribution import ALPHA, Check, checks, columns_of
from conformance.workloads.exercise import LINE, NOISY_LINE, Points, points
from conformance.workloads.layout import Window
from conformance.workloads.multivariate import SAMPLES, SHARD, multivariate
from conformance.workloads.recipes import RECIPES

from . import dataset, descent, sweep

#: The weight that the exercise's tables are filled in for.
WEIGHT = Fraction(2)


@dataclass(frozen=True)
class Exercise:
    """The exercise's tables and its sweep of learning rates. A row of ``losses`` is x, ytrue, ypred, loss of a point;
    one of ``gradients`` is points and their gradient."""

    losses: tuple[tuple[float, ...], ...]
    loss: float
    gradients: tuple[tuple[str, float], ...]
    batches: tuple[tuple[str, float], ...]
    settling: Markup
    factor: Markup
    one_by_one: tuple[sweep.Threshold, sweep.Threshold]
    together: tuple[sweep.Threshold, sweep.Threshold]


@dataclass(frozen=True)
class Notebook:
    """The notebook's data set, its checks, and its descents."""

    checks: tuple[tuple[Check, ...], ...]
    correlations: tuple[tuple[float, ...], ...]
    largest_correlation: float
    limits: dict[str, float]
    alpha: float
    histograms: tuple[Markup, ...]
    scatter: Markup
    targets: tuple[float, float]
    weights: Markup
    distances: Markup
    nodes: tuple[tuple[float, ...], ...]
    samples: int = SAMPLES
    shard: int = SHARD


@cache
def exercise() -> Exercise:
    one_by_one = [points([point]) for point in NOISY_LINE]
    together = [points(NOISY_LINE)]
    losses = tuple((x, y, float(WEIGHT * x), float(_form([(x, y)], len(LINE)).loss((WEIGHT,)))) for x, y in LINE)
    return Exercise(
        losses,
        float(_form(LINE, len(LINE)).loss((WEIGHT,))),
        tuple((f"({x}, {y})", _gradient([(x, y)])) for x, y in NOISY_LINE),
        tuple(
            (" ".join(f"({x}, {y})" for x, y in batch), _gradient(batch)) for batch in (NOISY_LINE[:2], NOISY_LINE[2:])
        ),
        sweep.settling(one_by_one),
        sweep.factor(together),
        sweep.thresholds(one_by_one),
        sweep.thresholds(together),
    )


@cache
def notebook() -> Notebook:
    workload, found = multivariate(), descents()
    columns = columns_of(workload)
    targets = np.array([float(sample.y) for sample in workload.batches[0]])
    every = checks(columns)
    return Notebook(
        tuple(tuple(one for one in every if one.columns == (index,)) for index in range(len(columns))),
        tuple(tuple(row) for row in np.asarray(np.corrcoef(columns)).tolist()),
        max(abs(one.value) for one in every if one.what == "correlation"),
        {one.what: one.limit for one in every},
        ALPHA,
        tuple(dataset.histogram(column, index) for index, column in enumerate(columns)),
        dataset.scatter(columns, targets),
        (float(targets.min()), float(targets.max())),
        descent.weights(found),
        descent.distances(found),
        found.nodes,
    )


def certified() -> tuple[tuple[str, str], ...]:
    """Name and purpose of the workloads made of small dyadic rationals."""
    return tuple((recipe.name, recipe.summary) for recipe in RECIPES.values())


def _form(data: Points, n: int) -> NormalForm:
    """The loss of ``data`` where each squared error is divided by ``n``."""
    window = Window(0, points(data), ((tuple(range(len(data))),),), 1)
    return NormalForm.of(window, (Fraction(1, n),) * len(data), bias=False)


def _gradient(data: Points) -> float:
    [gradient] = _form(data, len(data)).gradient((WEIGHT,))
    return float(gradient)
