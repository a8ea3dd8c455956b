"""The standard workloads of whole data sets: those of the exercise, a multivariate regression, and samples in any
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import NamedTuple

import numpy as np

from conformance.workloads.model import Linear
from conformance.workloads.reading_plan import Sampler
from conformance.workloads.workload import SGD, Sample, Workload

#: The exercise's data: a line through the origin, a noisy line, two workers' shards.
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
    return exercise("line", [LINE], 0.001, 25, "The line through the origin, all four points per step.")


def noisy_line() -> Workload:
    return exercise("noisy-line", [NOISY_LINE], 0.001, 25, "The noisy line around y = x, all four points per step.")


def two_workers() -> Workload:
    """The shards of the exercise's last question, ordered for two ranks to read the same as its two workers."""
    batches = [(*first, *second) for first, second in zip(*TWO_WORKERS, strict=True)]
    return exercise("two-workers", batches, 0.001, 10, "The two workers' shards of the distributed exercise.")


#: The regression of the Horovod notebook has column means 0..3, and coefficients 5 3 2 1.
SEED = 42
SAMPLES = 1000
FEATURES = 4
COEFFICIENTS = (5, 3, 2, 1)
LEARNING_RATE = 0.01
EPOCHS = 400
SHARD = 250
#: Features are rounded to multiples of this, which keeps their distribution; fp32 then represents all targets.
GRID = Fraction(1, 1024)


@cache
def multivariate() -> Workload:
    """Full-batch gradient descent: shards of 250, for four ranks or four micro-batches, give the same trajectory."""
    generator = np.random.default_rng(SEED)
    columns = generator.standard_normal((SAMPLES, FEATURES)) + np.arange(FEATURES)
    rows = np.rint(columns / float(GRID)).astype(int)
    samples = []
    for row in rows.tolist():
        x = tuple(entry * GRID for entry in row)
        samples.append(Sample(x, sum((c * v for c, v in zip(COEFFICIENTS, x, strict=True)), Fraction(0))))
    start = np.round(generator.standard_normal(FEATURES), 3).astype(np.float32)
    return Workload(
        name="multivariate",
        batches=(tuple(samples),),
        optimizer=SGD(Fraction(LEARNING_RATE)),
        model=Linear(FEATURES),
        start=tuple(map(Fraction, start.tolist())),
        epochs=EPOCHS,
        summary="1000 samples of 4 uncorrelated normal features; gradient descent recovers 5 3 2 1.",
    )


# Samples in any order, as with a sampler that repeats or drops samples. Features are 1 or -1, targets are whole
# numbers, and most global batches have a power of two of samples. So a step adds few bits to the weights, with any
# samples, even repeated ones; the certificate proves each order that is read. 16 bits have no room for any. All rows
# differ, so a trace shows which samples were read.
_SIX = Linear(6, bias=True)
_TARGETS = (-4, -3, -2, -1, 1, 2, 3, 4)
_WEIGHTS = (-2, -1, 1, 2)

OWN_ORDER = "own-order"


class _Stream(NamedTuple):
    """``more``: samples of an epoch beyond whole windows. ``sizes``: the global batch sizes to try, in order."""

    summary: str
    sampler: Sampler
    more: int
    windows: int = 3
    epochs: int = 2
    sizes: tuple[int, ...] = (8, 12, 16)


_STREAMS = {
    # Two epochs repeat a micro-batch of one sample on each of two ranks: in the third, a position computed from the
    # number of samples in the data set is wrong.
    "sampler-pads": _Stream(
        "Three epochs whose samples do not divide over the ranks: the sampler repeats one.",
        "pad",
        -1,
        2,
        3,
        (4, 12, 16),
    ),
    "sampler-drops": _Stream(
        "Two epochs whose samples do not divide over the ranks: the sampler drops one.", "drop", 1
    ),
    OWN_ORDER: _Stream("Two epochs; in each the trainer chooses the order of the samples.", "pad", 0),
}
#: The workloads, each with the global batch sizes to try, in order.
ANY_ORDER: dict[str, tuple[int, ...]] = {name: stream.sizes for name, stream in _STREAMS.items()}


@cache
def any_order(name: str, batch_size: int) -> Workload:
    """The workload ``name`` with global batches of ``batch_size`` samples.

    Raises:
        KeyError: no such workload.
    """
    stream = _STREAMS[name]
    draw = Random(f"{name} {batch_size}")
    rows = list(product((Fraction(1), Fraction(-1)), repeat=_SIX.features))
    draw.shuffle(rows)
    samples = tuple(
        Sample(row, Fraction(draw.choice(_TARGETS))) for row in rows[: stream.windows * batch_size + stream.more]
    )
    return Workload(
        name=name,
        batches=tuple(samples[start : start + batch_size] for start in range(0, len(samples), batch_size)),
        optimizer=SGD(Fraction(1, 2), momentum=Fraction(1, 2)),
        model=_SIX,
        start=tuple(Fraction(draw.choice(_WEIGHTS)) for _ in range(_SIX.size)),
        epochs=stream.epochs,
        shuffle=True,
        sampler=stream.sampler,
        own_order=name == OWN_ORDER,
        summary=stream.summary,
    )
