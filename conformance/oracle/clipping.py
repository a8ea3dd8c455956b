"""Gradient clipping as torch.nn.utils defines it, with its exactness or error."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from conformance.oracle.affine import Affine, Interval, square_root
from conformance.oracle.rounding import Ledger, gamma
from conformance.workloads.precision import Format
from conformance.workloads.workload import Clip

#: torch.nn.utils.clip_grad_norm_ divides by (norm + 1e-6).
NORM_GUARD = Fraction(1e-6)


def clipped(
    gradient: Affine,
    clip: Clip,
    fmt: Format,
    ledger: Ledger,
    guard: Fraction = NORM_GUARD,
    measured: Sequence[Affine] = (),
) -> Affine:
    """``gradient`` after clipping. Clamping never rounds; scaling does, unless the norm is below the threshold.
    ``guard``: what is added to the norm. ``measured``: the vectors whose largest norm it is, if not the gradient's."""
    if clip.kind == "value":
        if not fmt.holds(clip.threshold):
            ledger.refuse("clip", fmt, f"the threshold is not representable in {fmt.name}")
            return gradient.clamped(clip.threshold).widen([fmt.unit_roundoff * clip.threshold] * len(gradient))
        return gradient.clamped(clip.threshold)
    low, high = map(max, zip(*(_norm(vector, fmt) for vector in measured or [gradient]), strict=True))
    if high + guard * (1 + gamma(2, fmt)) <= clip.threshold * (1 - gamma(4, fmt)):
        return gradient
    ledger.refuse("clip", fmt, "scaling by the norm rounds")
    # The quotient's two roundings, its clamp to 1, and the product.
    rounding = gamma(4, fmt)
    coefficient_low = min(Fraction(1), clip.threshold / (high + guard) * (1 - rounding))
    coefficient_high = min(Fraction(1), clip.threshold / max(low + guard, clip.threshold) * (1 + rounding))
    scaled = gradient.scaled_by_interval(coefficient_low, coefficient_high)
    return scaled.widen([fmt.unit_roundoff * size + fmt.quantum for size in scaled.magnitude])


def _norm(gradient: Affine, fmt: Format) -> Interval:
    """Bounds of the 2-norm in ``fmt``: squares, sums over entries and over tensors, and two square roots round."""
    bounds = [gradient.interval(index) for index in range(len(gradient))]
    least = sum((Fraction(0) if low <= 0 <= high else min(low * low, high * high) for low, high in bounds), Fraction(0))
    most = sum((max(low * low, high * high) for low, high in bounds), Fraction(0))
    underflow = len(bounds) * fmt.quantum
    rounding = gamma(2 * len(bounds) + 6, fmt)
    return (
        square_root(max(least - underflow, Fraction(0)))[0] * (1 - rounding),
        square_root(most + underflow)[1] * (1 + rounding),
    )
