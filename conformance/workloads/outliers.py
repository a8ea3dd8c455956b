"""Samples that overflow fp16 in different ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from operator import mul

from conformance.workloads.workload import Sample, Vector

Batch = tuple[Sample, ...]
#: Puts outliers into a batch; the weights are those that it is trained on, the bias last.
Outliers = Callable[[Batch, Vector], Batch]

#: Times any loss scale of the recipes, this is far outside fp16's range; the loss itself stays finite.
FAR = Fraction(2**20)
#: Its square is outside fp32's range: the loss itself is infinite. Twice its scaled error is inside.
INFINITELY_FAR = Fraction(2**70)
#: The largest number of an outlier is at least this, and all other numbers are smaller.
OUTLYING = Fraction(2**9)


def is_outlier(sample: Sample) -> bool:
    return max(map(abs, (*sample.x, sample.y))) >= OUTLYING


def has_infinite_loss(sample: Sample) -> bool:
    """Whether its loss is infinite at any loss scale."""
    return abs(sample.y) >= INFINITELY_FAR


def last_target(batch: Batch, weights: Vector) -> Batch:
    """Makes the last target far off: every gradient overflows in the last micro-batch of the last rank."""
    return (*batch[:-1], replace(batch[-1], y=-FAR))


def in_one_row(element: int) -> Outliers:
    """Gives the last sample only this feature: only its gradient overflows, and the same error times any other feature
    fits."""

    def outliers(batch: Batch, weights: Vector) -> Batch:
        *others, last = batch
        x = tuple(OUTLYING if at == element else Fraction(0) for at in range(len(last.x)))
        return (*others, replace(last, x=x, y=weights[element] * OUTLYING - OUTLYING))

    return outliers


def first_losses(batch: Batch, weights: Vector) -> Batch:
    """Makes the losses of the first two samples, in the first micro-batch of the first rank, infinite, with gradients
    of opposite sign: their sums are NaN."""
    first, second, *others = batch
    x = tuple(abs(value) if like > 0 else -abs(value) for value, like in zip(second.x, first.x, strict=True))
    return (replace(first, y=-INFINITELY_FAR), replace(second, x=x, y=INFINITELY_FAR), *others)


def weights_alone(batch: Batch, weights: Vector) -> Batch:
    """Gives two samples large features: at a loss scale of 2^5 the weights' gradients overflow in one micro-batch, of
    the second rank if there are two or three.

    All other samples fit, and the two errors are opposite, so the bias's gradient is zero: an optimizer with only the
    bias may take its step.
    """
    first, second, *others = weights[:-1]
    large = Fraction(1)
    while large * max(abs(first), abs(second)) < OUTLYING:
        large *= 2
    # The weights predict zero for it.
    x = (large * second, -large * first, *(Fraction(0) for _ in others))
    at, error = len(batch) // 4, 96
    outliers = Sample(x, weights[-1] - error), Sample(tuple(-value for value in x), weights[-1] + error)
    return _in_fitting(batch, weights, at, outliers)


def bias_alone(batch: Batch, weights: Vector) -> Batch:
    """Gives four samples of one micro-batch equal errors: at a loss scale of 2^4 the sum of their gradients overflows,
    but none of them alone.

    All other samples fit, and the features cancel, so the weights' gradients are zero: an optimizer with only the
    weights may take its step.
    """
    rows = [tuple(Fraction(sign * factor) for _ in weights[:-1]) for factor in (1, 2) for sign in (1, -1)]
    at, error = len(batch) // 3, 27 * 2**9
    return _in_fitting(batch, weights, at, [Sample(x, _prediction(x, weights) - error) for x in rows])


def _in_fitting(batch: Batch, weights: Vector, at: int, outliers: Sequence[Sample]) -> Batch:
    """Puts ``outliers`` from index ``at`` on among samples that the weights predict exactly."""
    fitting = [replace(sample, y=_prediction(sample.x, weights)) for sample in batch]
    return (*fitting[:at], *outliers, *fitting[at + len(outliers) :])


def _prediction(x: Vector, weights: Vector) -> Fraction:
    return sum(map(mul, x, weights), weights[-1])
