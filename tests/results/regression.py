"""Trajectories for results files: a linear regression in exact rationals, correct or with a bug."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from typing import Any

PARAMETERS = ["weight[0]", "weight[1]", "bias"]
SAMPLES = [(F(k % 4), F((k * 3) % 5) - 2, F(1)) for k in range(12)]
TARGETS = [2 * x[0] - F(3, 4) * x[1] + F(1, 2) + F((-1) ** k, 4) for k, x in enumerate(SAMPLES)]

Gradient = list[F]
Bug = Callable[[Gradient, int], Gradient]
Case = dict[str, Any]


def trajectory(steps: int, bug: Bug = lambda gradient, step: gradient) -> list[tuple[list[float], Gradient]]:
    """Weights after, and gradient in, each step of SGD on the mean squared error, with `bug`."""
    weights, found = [F(0), F(0), F(0)], []
    for step in range(steps):
        errors = [
            sum(a * b for a, b in zip(x, weights, strict=True)) - y for x, y in zip(SAMPLES, TARGETS, strict=True)
        ]
        mean = [2 * sum(e * x[i] for e, x in zip(errors, SAMPLES, strict=True)) / len(SAMPLES) for i in range(3)]
        gradient = bug([F(round(g * 2**12), 2**12) for g in mean], step)
        weights = [w - F(1, 16) * g for w, g in zip(weights, gradient, strict=True)]
        found.append(([float(w) for w in weights], gradient))
    return found


def steps_of(count: int, bits: int, bug: Bug | None = None, bounded: bool = False) -> list[Case]:
    """The `steps` of a case whose correct answer is `trajectory(count)`."""
    right, seen = trajectory(count), trajectory(count, bug) if bug else trajectory(count)
    rows = []
    for k, ((expected, gradient), (observed, other)) in enumerate(zip(right, seen, strict=True)):
        noise = [((k * 7 + i * 3) % 5 - 2) * 2.0 ** -(bits + 2) if bounded else 0.0 for i in range(3)]
        observed = [value + off for value, off in zip(observed, noise, strict=True)]
        error = [abs(b - a) for a, b in zip(expected, observed, strict=True)]
        bound = [(k + 1) * 3 * 2.0**-bits] * 3
        row: Case = {"step": k, "window": k, "expected": expected, "observed": observed, "error": error}
        row |= {"bound": bound} if bounded else {"ulp": [abs(e) * 2.0 ** (bits - 1) for e in error]}
        grads, others = [float(g) for g in gradient], [float(g) for g in other]
        row |= {"gradient_expected": grads, "gradient_observed": others}
        row |= {"gradient_error": [abs(b - a) for a, b in zip(grads, others, strict=True)]}
        rows.append(row)
    return rows
