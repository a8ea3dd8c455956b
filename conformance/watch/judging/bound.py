"""How far the sketch of a sum can be from the sum of the sketches by rounding: the proof is in docs/numerics.md."""

from __future__ import annotations

from conformance.watch.judging.windows import ROUNDOFF
from conformance.watch.sizes import BLOCK

SIGNS = 64.0
"""A projection on random signs exceeds this many standard deviations with probability below 10⁻¹⁰."""

_OF_NORM = 1.01
"""Norms are computed in single precision."""


def of_sum(roundings: int, roundoff: float, norms: float) -> float:
    """Of a sum of gradients whose norms add up to `norms`, each element of which passed so many roundings."""
    return SIGNS * roundings * roundoff * _OF_NORM * norms


def of_sketch(roundoff: float, norm: float) -> float:
    """Of the sketch of a tensor, which is computed block by block in single precision, or double for doubles."""
    computed_in = max(min(roundoff, ROUNDOFF["float32"]), ROUNDOFF["float64"])
    return SIGNS * (BLOCK - 1) * computed_in * _OF_NORM * norm
