"""Bounds on rounding errors: the loss of a format, and the distance between the sketch of a sum and the sum of the
sketches. docs/proofs.md has the proof.
"""

from __future__ import annotations

from math import sqrt

from conformance.watch.sizes import BLOCK
from conformance.workloads.precision import BF16, FP16, FP32, FP64

#: Unit roundoffs.
ROUNDOFF = {one.dtype: float(one.unit_roundoff) for one in (FP64, FP32, FP16, BF16)}
ROUNDOFF |= {"complex64": ROUNDOFF["float32"], "complex128": ROUNDOFF["float64"]}
COARSEST = 2.0**-8
#: By the roundoff of a format, the largest loss of an operation by underflow: the smallest normal number, because
#: processors may flush to zero; for float16, which is never flushed, the smallest positive number.
LOST = {
    ROUNDOFF["float64"]: 2.0**-1022,
    ROUNDOFF["float32"]: 2.0**-126,
    ROUNDOFF["bfloat16"]: 2.0**-126,
    ROUNDOFF["float16"]: 2.0**-24,
    0.0: 0.0,
}


SIGNS = 64.0
"""A projection on random signs exceeds this many standard deviations with probability below 10⁻¹⁰."""

_COARSE = 2.0**-12
"""Unit roundoff from which worst-case bounds are too wide to show anything."""

_RANDOM = 8.0
"""A sum of independent errors, each of mean 0 and within its bound, exceeds this many times the root of the sum of the
squares of the bounds with probability below 2 exp(-32)."""

_HIGHER_ORDER = 1.01
"""Terms of higher order in the roundoff, and the rounding of sums in double precision."""


def of_sum(roundings: int, roundoff: float, norms: float) -> float:
    """The bound for a sum of gradients whose norms add up to `norms`, with this many roundings of each element."""
    if roundoff >= _COARSE:
        return _RANDOM * sqrt(roundings) * roundoff * _HIGHER_ORDER * norms
    return SIGNS * roundings * roundoff * _HIGHER_ORDER * norms


def of_underflow(roundings: int, roundoff: float, elements: int) -> float:
    """The bound for elements that underflowed this often, each, in the format with this roundoff."""
    return SIGNS * roundings * LOST[roundoff] * sqrt(elements)


def of_sketch(roundoff: float, norm: float) -> float:
    """The bound for the sketch of a tensor, computed block by block in single precision, or in double for doubles."""
    computed_in = max(min(roundoff, ROUNDOFF["float32"]), ROUNDOFF["float64"])
    return SIGNS * (BLOCK - 1) * computed_in * _HIGHER_ORDER * norm
