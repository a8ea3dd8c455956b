"""The multivariate regression of the Horovod notebook: 1000 samples, column means 0..3, coefficients 5 3 2 1."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np

from conformance.workloads.model import Linear
from conformance.workloads.workload import SGD, Sample, Workload

SEED = 42
SAMPLES = 1000
FEATURES = 4
COEFFICIENTS = (5, 3, 2, 1)
LEARNING_RATE = 0.01
EPOCHS = 400
SHARD = 250
#: Features are rounded to multiples of this, which leaves their distribution as it is; fp32 then holds all targets.
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
