"""The data sets of the gradient-averaging exercise: a line through the origin, a noisy line, two workers' shards."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD, Sample, Workload

Points = Sequence[tuple[float, float]]

LINE: Points = ((1, 1), (2, 2), (3, 3), (4, 4))
NOISY_LINE: Points = ((1, 0), (2, 1), (3, 1), (4, 6.25))
#: shard -> batch -> (x, ytrue)
TWO_WORKERS: Sequence[Sequence[Points]] = ((LINE[:2], LINE[2:]), (NOISY_LINE[:2], NOISY_LINE[2:]))


def points(pairs: Points) -> tuple[Sample, ...]:
    return tuple(Sample((Fraction(x),), Fraction(y)) for x, y in pairs)


def exercise(name: str, batches: Sequence[Points], lr: float, epochs: int, summary: str = "") -> Workload:
    """Gradient descent on ``ypred = m * x`` from m = 0: one optimizer step per batch, ``epochs`` times over."""
    return Workload(
        name=name,
        batches=tuple(points(batch) for batch in batches),
        optimizer=SGD(Fraction(lr)),
        model=Linear(1),
        start=(Fraction(0),),
        epochs=epochs,
        summary=summary,
    )


def line() -> Workload:
    return exercise("line", [LINE], 0.001, 25, "The line through the origin, all four points a step.")


def noisy_line() -> Workload:
    return exercise("noisy-line", [NOISY_LINE], 0.001, 25, "The noisy line around y = x, all four points a step.")


def two_workers() -> Workload:
    """The shards of the exercise's last question, in an order in which two ranks read what its two workers read."""
    batches = [(*first, *second) for first, second in zip(*TWO_WORKERS, strict=True)]
    return exercise("two-workers", batches, 0.001, 10, "The two workers' shards of the distributed exercise.")
