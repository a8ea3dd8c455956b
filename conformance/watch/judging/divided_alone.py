"""Are some micro-batches of a window divided by the loss scale once more than the others?"""

from __future__ import annotations

from collections.abc import Iterable
from math import isclose

from conformance.watch.judging.case import Case

_NEAR = 0.01


def divided_alone(case: Case, factors: Iterable[float]) -> float | None:
    """The loss scale of the window, if some of its passes count just that much less than all others. However a script
    weighs its micro-batches, it does not by a number that multiplies all of their losses."""
    factors = list(factors)
    most = max(factors, key=abs)
    if len(case.window.scales) != 1 or case.window.scales == [1.0]:
        return None
    [scale] = case.window.scales
    less = [one for one in factors if isclose(one * scale, most, rel_tol=_NEAR)]
    alike = [one for one in factors if isclose(one, most, rel_tol=_NEAR)]
    return scale if less and len(less) + len(alike) == len(factors) else None
