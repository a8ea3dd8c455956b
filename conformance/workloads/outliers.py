"""Samples of one batch that overflow fp16, each in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from conformance.workloads.workload import Sample

Batch = tuple[Sample, ...]
#: Puts them into a batch.
Outliers = Callable[[Batch], Batch]

#: Times any loss scale of the recipes it is far outside fp16's range; the loss itself stays finite.
FAR = Fraction(2**20)
#: Its square is outside fp32's range, so that the loss itself is infinite. Twice its scaled error is inside.
INFINITELY_FAR = Fraction(2**70)


def last_target(batch: Batch) -> Batch:
    """The last target is far off: in the last micro-batch of the last rank every gradient overflows."""
    return (*batch[:-1], replace(batch[-1], y=-FAR))


def first_losses(batch: Batch) -> Batch:
    """The losses of the first two samples, in the first micro-batch of the first rank, are infinite, their gradients
    of opposite sign: no sum of them is a number."""
    first, second, *others = batch
    x = tuple(abs(value) if like > 0 else -abs(value) for value, like in zip(second.x, first.x, strict=True))
    return (replace(first, y=-INFINITELY_FAR), replace(second, x=x, y=INFINITELY_FAR), *others)
