"""The learning rates at which gradient descent on the one weight of ``ypred = m x`` settles: exact thresholds.

The loss of a batch of N points is the mean (1/N) sum (y - m x)^2. Its derivative is -(2/N) sum x (y - m x) = c (m - m*)
with the curvature c = (2/N) sum x^2 and the batch's best weight m* = sum x y / sum x^2. One step of gradient descent,
m - lr c (m - m*), therefore multiplies the error m - m* with the factor 1 - lr c:

- 0 <= 1 - lr c < 1: the error keeps its sign and shrinks, up to lr = 1/c = N / (2 sum x^2);
- -1 < 1 - lr c < 0: the step overshoots m*, but the error still shrinks, up to lr = 2/c = N / sum x^2;
- 1 - lr c <= -1: the error no longer shrinks.

So gradient descent on one batch converges if and only if 0 < lr < N / sum x^2. With several batches in turn, each with
its own c and m*, an epoch maps m to P m + (a constant), where P is the product of the batches' factors. Weights settle,
on a cycle of one weight per batch, if and only if |P| < 1. That can be true again at higher rates: near lr = 1/c one
batch removes all error.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Literal

from conformance.workloads.workload import Sample

Outcome = Literal["converging", "oscillating", "diverging"]
Batches = Sequence[Sequence[Sample]]

#: The relative width of the enclosures of rates: narrower than a double, in which they are shown.
PRECISION = Fraction(1, 2**60)


def curvature(batch: Sequence[Sample]) -> Fraction:
    """The second derivative of a batch's loss, (2/N) sum x^2.

    Raises:
        ValueError: every x is zero: no learning rate moves the weight.
    """
    result = 2 * sum((sample.x[0] ** 2 for sample in batch), Fraction(0)) / len(batch)
    if not result:
        raise ValueError("a batch whose points all have x = 0 has no slope")
    return result


def factors(batches: Batches, lr: Fraction) -> tuple[Fraction, ...]:
    """The factor by which each batch's step multiplies the error."""
    return tuple(1 - lr * curvature(batch) for batch in batches)


def outcome(batches: Batches, lr: Fraction) -> Outcome:
    """How the weight behaves at ``lr`` > 0: it converges, oscillates and settles, or never settles."""
    steps = factors(batches, lr)
    if abs(prod(steps, start=Fraction(1))) >= 1:
        return "diverging"
    return "oscillating" if min(steps) < 0 else "converging"


def oscillates_from(batches: Batches) -> Fraction:
    """The learning rate above which some batch's step overshoots its best weight: the least N / (2 sum x^2)."""
    return min(1 / curvature(batch) for batch in batches)


def diverges_from(batches: Batches) -> tuple[Fraction, Fraction]:
    """The least learning rate at which nothing settles, as an enclosure; N / sum x^2 exactly for a single batch."""
    if len(batches) == 1:
        threshold = 2 / curvature(batches[0])
        return threshold, threshold
    return crossings(batches)[0]


def crossings(batches: Batches) -> list[tuple[Fraction, Fraction]]:
    """All learning rates at which |P| crosses one, ascending, each as an enclosure.

    Below the first one weights settle, between it and the second they do not, and so on. P has only the real roots 1/c,
    so log |P| is concave between two of them: |P| rises to one peak and falls. Beyond the last root it rises forever. A
    peak that exceeds one by less than the bisection resolves counts as not exceeding it.
    """
    curvatures = [curvature(batch) for batch in batches]
    roots = sorted({1 / each for each in curvatures})
    found = []
    for low, high in pairwise(roots):
        peak = _peak(curvatures, low, high)
        if _magnitude(curvatures, peak) >= 1:
            found += [_crossing(curvatures, low, peak), _crossing(curvatures, high, peak)]
    outside = 2 * roots[-1]
    while _magnitude(curvatures, outside) < 1:
        outside *= 2
    return [*found, _crossing(curvatures, roots[-1], outside)]


def _magnitude(curvatures: Sequence[Fraction], lr: Fraction) -> Fraction:
    return abs(prod((1 - lr * each for each in curvatures), start=Fraction(1)))


def _peak(curvatures: Sequence[Fraction], low: Fraction, high: Fraction) -> Fraction:
    """The maximum of |P| between two neighbouring roots: there the derivative of its logarithm changes sign."""
    while high - low >= low * PRECISION:
        middle = (low + high) / 2
        slope = sum((each / (middle * each - 1) for each in curvatures), Fraction(0))
        low, high = (middle, high) if slope > 0 else (low, middle)
    return (low + high) / 2


def _crossing(curvatures: Sequence[Fraction], below: Fraction, above: Fraction) -> tuple[Fraction, Fraction]:
    """The crossing of |P| through one between ``below``, where it is less, and ``above``, where it is not."""
    while abs(above - below) >= min(below, above) * PRECISION:
        middle = (below + above) / 2
        below, above = (middle, above) if _magnitude(curvatures, middle) < 1 else (below, middle)
    return min(below, above), max(below, above)


def settled(batches: Batches, lr: Fraction) -> tuple[Fraction, ...]:
    """The fixed point: the weights of the cycle that epochs end in, after each batch's step.

    Raises:
        ValueError: it does not settle.
    """
    steps = factors(batches, lr)
    product = prod(steps, start=Fraction(1))
    if abs(product) >= 1:
        raise ValueError(f"nothing settles at the learning rate {float(lr):g}")
    shifts = [lr * 2 * sum((s.x[0] * s.y for s in batch), Fraction(0)) / len(batch) for batch in batches]
    weight = Fraction(0)
    for factor, shift in zip(steps, shifts, strict=True):
        weight = factor * weight + shift
    weight /= 1 - product
    cycle = []
    for factor, shift in zip(steps, shifts, strict=True):
        weight = factor * weight + shift
        cycle.append(weight)
    return tuple(cycle)
