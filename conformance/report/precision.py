"""Whether wrong numbers are right but for a rounding to a lower precision somewhere on the way."""

from __future__ import annotations

from math import isfinite

from conformance.results.records import CaseRecord

#: The error of a number of float32, relative to the largest of its vector, and of some that are computed from such.
_LEAST, _MOST = 2.0**-32, 2.0**-22


def of_single_precision(case: CaseRecord) -> bool:
    """Whether a case in float64 first goes wrong by about what float32 rounds off."""
    first = case.first_difference
    if first is None or case.diverged is not None or case.precision != "fp64" or case.mistake is not None:
        return False
    step = next((one for one in case.steps if one.step == first.step), None)
    right = step and (step.expected if first.quantity == "weights" else step.gradient_expected)
    largest = max((abs(value) for value in right or () if value is not None), default=0.0)
    if not largest or not isfinite(largest) or first.error is None or not isfinite(first.error):
        return False
    return _LEAST < first.error / largest < _MOST
