"""What numbers of a format lose, and how far the sketch of a sum can be from the sum of the sketches by rounding: the
proof is in docs/numerics.md.
"""

from __future__ import annotations

from math import sqrt

from conformance.watch.sizes import BLOCK
from conformance.workloads.precision import BF16, FP16, FP32, FP64

#: Unit roundoffs.
ROUNDOFF = {one.dtype: float(one.unit_roundoff) for one in (FP64, FP32, FP16, BF16)}
ROUNDOFF |= {"complex64": ROUNDOFF["float32"], "complex128": ROUNDOFF["float64"]}
COARSEST = 2.0**-8
#: By the roundoff of a format, what an operation loses at most where its result is too small: the smallest normal
#: number, as processors may flush to zero; of float16, which none flushes, the smallest positive one.
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
"""Formats with at least this unit roundoff lose so much that the bound for any errors shows nothing."""

_RANDOM = 16.0
"""A sum of independent errors, each of mean 0 and within its bound, exceeds this many times the root of the sum of the
squares of the bounds with probability below 2 exp(-128)."""

_HIGHER_ORDER = 1.01
"""Terms of higher order in the roundoff, and the rounding of sums in double precision."""


def of_sum(roundings: int, roundoff: float, norms: float) -> float:
    """Of a sum of gradients whose norms add up to `norms`, each element of which passed so many roundings."""
    if roundoff >= _COARSE:
        return _RANDOM * sqrt(roundings) * roundoff * _HIGHER_ORDER * norms
    return SIGNS * roundings * roundoff * _HIGHER_ORDER * norms


def of_underflow(roundings: int, roundoff: float, elements: int) -> float:
    """Of so many elements, each of which was so often too small for the format with this roundoff."""
    return SIGNS * roundings * LOST[roundoff] * sqrt(elements)


def of_sketch(roundoff: float, norm: float) -> float:
    """Of the sketch of a tensor, which is computed block by block in single precision, or double for doubles."""
    computed_in = max(min(roundoff, ROUNDOFF["float32"]), ROUNDOFF["float64"])
    return SIGNS * (BLOCK - 1) * computed_in * _HIGHER_ORDER * norm
