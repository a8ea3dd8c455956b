"""What losses are multiplied with and divided by, as far as it is known when they go backward."""

from __future__ import annotations

from math import isclose, prod

from conformance.watch import records
from conformance.watch.judging.windows import Window


def factor_of(backward: records.Backward) -> float:
    """What the loss was multiplied with, but for the loss scale."""
    return prod(backward.factors) / (backward.scale or 1.0)


def divisors_of(backward: records.Backward) -> list[float]:
    """What its loss is divided by, but for what it was multiplied with to make up for, while another divisor is left:
    as where a mean over all is multiplied with the number of micro-batches, by which a framework divides it again."""
    left = [*backward.divisors]
    others = [*backward.divisors, 1 / (backward.scale or 1.0)]
    for factor in backward.factors:
        own = next((one for one in others if isclose(factor * one, 1)), None)
        if own is not None:
            others.remove(own)
            continue
        for divisor in [*left]:
            if len(left) > 1 and factor >= divisor > 1 and isclose(factor / divisor, round(factor / divisor)):
                left.remove(divisor)
                factor /= divisor
    return left


def weight_of(window: Window) -> float | None:
    """What all targets of a rank weigh in its own losses; None if it is not known."""
    weights = [_weight_of(one) for one in window.backwards.values()]
    known = [weight for weight in weights if weight is not None]
    return sum(known) if len(known) == len(weights) else None


def _weight_of(backward: records.Backward) -> float | None:
    factor = factor_of(backward)
    if not factor:
        # A batch that is made up, for a rank that has none.
        return 0.0
    return factor * (1 if backward.targets else backward.summed) or None


def scale_of(window: Window) -> float | None:
    """What all losses were multiplied with last, if it is more than 1, and no scaler did it."""
    scales = {one.factors[0] if one.factors else 0.0 for one in window.backwards.values()}
    return max(scales) if len(scales) == 1 and window.scales == [1.0] and max(scales) > 1.0 else None
