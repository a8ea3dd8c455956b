"""Generates docs/WORKLOADS.md and its figures: the trainers' data, in tables and drawings.

    pip install -c constraints.txt -e ".[docs]"
    python -m tools.workloads_page

Only the figures need matplotlib. Each has a digest of its drawing calls, so a test sees when it is out of date.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from conformance.workloads.data_sets import COEFFICIENTS, LINE, NOISY_LINE, SAMPLES, SHARD, Points, multivariate, points
from conformance.workloads.recipes import RECIPES
from tools.distribution import ALPHA, Check, checks, columns_of
from tools.float_descents import Descents, descents, distance
from tools.learning_rate import (
    Batches,
    diverges_from,
    factors,
    oscillates_from,
    outcome,
    settled,
)
from tools.ring_figure import WORLD_SIZE, ring

DOCS = Path(__file__).parents[1] / "docs"
RATES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
COLOURS = {"converging": "#2a7f4f", "oscillating": "#b07a00", "diverging": "#b3261e"}
#: The weight of the exercise's tables.
WEIGHT = Fraction(2)
ONE_BY_ONE: Batches = [points([point]) for point in NOISY_LINE]
TOGETHER: Batches = [points(NOISY_LINE)]


def page() -> str:
    """The text of docs/WORKLOADS.md."""
    return "\n\n".join([*_exercise(), *_notebook(), *_certified(), *_ring()]) + "\n"


def _exercise() -> Iterable[str]:
    yield "# Workloads"
    yield "The data that trainers are judged on. This page is generated: `python -m tools.workloads_page`."
    yield "## The exercise"
    yield "Gradient descent on one weight m, with the loss (m x − ytrue)². Losses at m = 2:"
    losses = [(x, y, float(WEIGHT * x), _loss([(x, y)], len(LINE))) for x, y in LINE]
    yield _table(["x", "ytrue", "ypred", "loss_point"], [*losses, ("", "", "loss_mse", _loss(LINE, len(LINE)))])
    single, both = [[point] for point in NOISY_LINE], [NOISY_LINE[:2], NOISY_LINE[2:]]
    yield "Gradients at m = 2, of points and of batches:"
    yield _table(["points", "gradient"], [(_pairs(data), _gradient(data)) for data in (*single, *both)])
    ratios = [max(found) / min(found) for found in ([_gradient(data) for data in group] for group in (single, both))]
    yield (
        f"The largest gradient of a point is {ratios[0]:.3g} times the smallest, "
        f"of a batch only {ratios[1]:.3g} times: "
        "averaging smooths."
    )
    yield "![Weights by learning rate, and the factor of the error in a step](workloads/learning-rates.svg)"
    yield (
        "A step on a batch of N points multiplies the error of the weight by 1 − lr · 2 Σx² / N. It oscillates above "
        "lr = N / (2 Σx²) and diverges from lr = N / Σx² on: exactly "
        f"{diverges_from(TOGETHER)[0]} for all four points. Point by point, the step on x = 4 goes too far above "
        f"{oscillates_from(ONE_BY_ONE)}, and epochs diverge above {float(diverges_from(ONE_BY_ONE)[0]):.6g}, except in "
        "a narrow range around 1/2, where the step on x = 1 removes the error."
    )


def _notebook() -> Iterable[str]:
    columns = columns_of(multivariate())
    found = checks(columns)
    yield "## multivariate"
    goals = " ".join(f"{goal:g}" for goal in map(float, COEFFICIENTS))
    yield f"{SAMPLES} samples of {len(columns)} uncorrelated normal features; gradient descent recovers {goals}."
    yield "![Histograms of the features, and the targets by two of them](workloads/features.svg)"
    names = {
        "mean": "mean, minus the intended one",
        "variance": "variance, minus 1",
        "distance": "Kolmogorov–Smirnov distance",
    }
    rows = [
        [
            says,
            *(f"{_of(found, what, column).value:.2g}" for column in range(len(columns))),
            f"{_limit(found, what):.2g}",
        ]
        for what, says in names.items()
    ]
    for at, row in enumerate(np.asarray(np.corrcoef(columns)).tolist()):
        values = ("1" if at == other else f"{value:.2g}" for other, value in enumerate(row))
        rows.append([f"correlation with x{at}", *values, f"{_limit(found, 'correlation'):.2g}"])
    yield _table(["check", *(f"x{column}" for column in range(len(columns))), "at most"], rows)
    verdict = "All pass" if all(check.holds for check in found) else "**Not all pass**"
    yield f"{verdict}. A correct draw of the data set exceeds the limits of one kind once in {1 / ALPHA:g} draws."
    yield "![Weights and their distance to the coefficients by epoch](workloads/descents.svg)"
    yield (
        f"Accumulating the gradients of shards of {SHARD}, each weighted with its share of the samples, is gradient "
        "descent over all samples. A step after every shard is mini-batch descent: other weights, more steps in an "
        f"epoch. After the last epoch {_nodes(descents().nodes)}."
    )


def _nodes(nodes: Sequence[Sequence[float]]) -> str:
    held = dict.fromkeys(" ".join(f"{value:.9g}" for value in node) for node in nodes)
    return f"all {len(nodes)} nodes of a ring have {next(iter(held))}" if len(held) == 1 else "**the nodes differ**"


def _certified() -> Iterable[str]:
    yield "## Certified"
    yield "Small dyadic rationals: correct trainers get bit-identical weights. Each shows a bug that the others hide."
    yield _table(["workload", ""], [(f"`{recipe.name}`", recipe.summary) for recipe in RECIPES.values()])


def _loss(data: Points, n: int) -> float:
    """The loss of ``data`` at WEIGHT, with each squared error divided by ``n``."""
    return float(sum((WEIGHT * Fraction(x) - Fraction(y)) ** 2 for x, y in data) / n)


def _gradient(data: Points) -> float:
    """The derivative of the mean loss of ``data`` at WEIGHT."""
    return float(sum(2 * Fraction(x) * (WEIGHT * Fraction(x) - Fraction(y)) for x, y in data) / len(data))


def _pairs(data: Points) -> str:
    return " ".join(f"({x:g}, {y:g})" for x, y in data)


def _of(found: Sequence[Check], what: str, column: int) -> Check:
    return next(check for check in found if check.what == what and check.columns == (column,))


def _limit(found: Sequence[Check], what: str) -> float:
    return next(check.limit for check in found if check.what == what)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([f"{cell:g}" if isinstance(cell, int | float) else str(cell) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _ring() -> Iterable[str]:
    yield "## How gradients travel around a ring"
    yield (
        f"Ring all-reduce of {WORLD_SIZE} ranks: each rank's gradient is cut into {WORLD_SIZE} segments. The numbers "
        "in a box are the ranks whose gradients it contains; an arrow is a message of the step. After reduce-scatter "
        "each rank has one complete segment, after all-gather all of them. Every rank sends one segment in a step, in "
        "total 2 (N − 1) / N of the gradient."
    )
    yield "![The segments of each rank, step by step](workloads/ring.svg)"


def learning_rates(figure: Any) -> None:
    """The final weights after training on one point per step, and the factor of the error in a step on all four."""
    left, right = figure.subplots(1, 2)
    for axes, batches in ((left, ONE_BY_ONE), (right, TOGETHER)):
        edges = [RATES[0] / 1.5, float(oscillates_from(batches)), float(diverges_from(batches)[0]), RATES[-1] * 1.5]
        for (name, colour), start, end in zip(COLOURS.items(), edges[:-1], edges[1:], strict=True):
            axes.axvspan(start, end, color=colour, alpha=0.12, label=name, linewidth=0)
        axes.set_xscale("log")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xlabel("learning rate")
    for rate in RATES:
        name = outcome(ONE_BY_ONE, Fraction(rate))
        cycle = [] if name == "diverging" else [float(weight) for weight in settled(ONE_BY_ONE, Fraction(rate))]
        left.plot([rate] * len(cycle), cycle, "o-", color=COLOURS[name], linewidth=0.8, markersize=4)
    left.set_ylabel("weights after training, point by point")
    left.legend(loc="upper left", fontsize="small")
    curve = np.geomspace(RATES[0] / 1.5, RATES[-1] * 1.5, 81).tolist()
    right.plot(curve, [_factor(rate) for rate in curve], color="black", linewidth=0.8)
    for rate in RATES:
        right.plot([rate], [_factor(rate)], "o", color=COLOURS[outcome(TOGETHER, Fraction(rate))], markersize=4)
    right.set_ylim(-3.2, 1.2)
    right.set_ylabel("factor of the error in a step on all points")


def _factor(rate: float) -> float:
    [value] = factors(TOGETHER, Fraction(rate))
    return float(value)


def features(figure: Any) -> None:
    """A histogram of each feature with its expected normal density; the targets by two of them."""
    workload = multivariate()
    columns = columns_of(workload)
    targets = [float(sample.y) for batch in workload.batches for sample in batch]
    *histograms, scatter = figure.subplots(1, len(columns) + 1)
    for index, (axes, column) in enumerate(zip(histograms, columns.tolist(), strict=True)):
        at = np.linspace(index - 4, index + 4, 81)
        axes.hist(column, bins=32, range=(index - 4, index + 4), density=True, alpha=0.5)
        axes.plot(at, np.exp(-((at - index) ** 2) / 2) / np.sqrt(2 * np.pi), linewidth=1)
        axes.set_title(f"x{index}", fontsize="small")
    scatter.scatter(columns[0].tolist(), columns[1].tolist(), c=targets, s=2)
    scatter.set_title("x0, x1; colour: y", fontsize="small")


def by_epoch(figure: Any) -> None:
    """The weights under ordinary descent, and each method's distance from the coefficients."""
    found: Descents = descents()
    left, right = figure.subplots(1, 2)
    for index, goal in enumerate(map(float, COEFFICIENTS)):
        left.plot([weights[index] for weights in found.ordinary], label=f"w{index} → {goal:g}")
        left.axhline(goal, color="grey", linestyle="--", linewidth=0.6)
    left.set_ylabel("weight")
    tracks = [
        ("all samples a step", found.ordinary, "-", 1),
        ("accumulated over shards", found.accumulated, "o", 20),
        ("a step a shard", found.mini_batch, "-", 1),
    ]
    for label, track, style, every in tracks:
        right.plot(range(0, len(track), every), [distance(w) for w in track[::every]], style, label=label, markersize=3)
    right.set_yscale("log")
    right.set_ylabel("distance to the coefficients")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.legend(fontsize="small")


FIGURES: dict[str, tuple[Callable[[Any], None], tuple[float, float]]] = {
    "learning-rates": (learning_rates, (9, 3.4)),
    "features": (features, (9, 2.2)),
    "descents": (by_epoch, (9, 3.2)),
    "ring": (ring, (10, 2)),
}


def digest(name: str) -> str:
    """The digest of everything that a figure draws: its calls, with their numbers."""
    calls = Calls()
    FIGURES[name][0](calls)
    return hashlib.sha256(repr(calls.made).encode()).hexdigest()[:16]


class Calls:
    """Replaces a matplotlib figure and its axes, and records the calls."""

    def __init__(self, made: list[object] | None = None) -> None:
        self.made: list[object] = [] if made is None else made

    def subplots(self, rows: int, columns: int) -> list[Calls]:
        return [Calls(self.made) for _ in range(columns)]

    def __getattr__(self, name: str) -> Callable[..., None]:
        def noted(*arguments: object, **options: object) -> None:
            self.made.append((name, [_rounded(value) for value in arguments], sorted(options)))

        return noted


def _rounded(value: object) -> object:
    """Rounds to nine digits: smaller ones may differ between machines."""
    if isinstance(value, np.ndarray):
        return _rounded(value.tolist())
    if isinstance(value, list | tuple | range):
        return [_rounded(each) for each in value]
    return f"{value:.9g}" if isinstance(value, float) else value


def draw(name: str, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "axes.spines.top": False})
    fill, size = FIGURES[name]
    figure = Figure(figsize=size, layout="constrained")
    fill(figure)
    figure.savefig(path, format="svg", metadata={"Date": None, "Description": digest(name)})


if __name__ == "__main__":
    (DOCS / "WORKLOADS.md").write_text(page(), encoding="utf-8")
    (DOCS / "workloads").mkdir(exist_ok=True)
    for each in FIGURES:
        draw(each, DOCS / "workloads" / f"{each}.svg")
