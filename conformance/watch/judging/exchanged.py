"""Whether a step gave parameters each other's gradients, as a flat buffer does that is taken apart in another order
than it was put together."""

from __future__ import annotations

from math import hypot

import numpy as np

from conformance.watch.judging.case import Case

_NEAR = 1e-3


def exchanged(case: Case) -> dict[int, int] | None:
    """Of each parameter that has another one's gradient, which: an exchange that, with one factor, explains the whole
    step. None if there is none.

    Each gradient is used in full and once, by a parameter that it was not computed for. To share gradients, by tied
    weights or by copies of a model, a script gives one of them to two, or to one that has none itself.
    """
    window = case.window
    if any(window.shards.get(number, 1) != 1 for number in case.parameters) or not case.is_of_one_sample:
        return None
    strange = [number for number in case.parameters if window.used[number][2] and not _fits_alone(case, number)]
    if len(strange) < 2:
        return None
    of: dict[int, int] = {}
    for number in strange:
        like = [
            other
            for other in strange
            if window.sizes.get(other) == window.sizes.get(number)
            and case.sample(other) == case.sample(number)
            and other not in of.values()
            and _is_along(case, number, other)
        ]
        if len(like) != 1:
            return None
        of[number] = like[0]
    factor = case.fits(lambda number: case.all(of.get(number, number)))
    return of if factor is not None and factor.is_known else None


def _fits_alone(case: Case, number: int) -> bool:
    factor = Case(case.together, case.window, [number], case.clips).fits(case.all)
    return factor is not None and factor.is_known


def _is_along(case: Case, number: int, other: int) -> bool:
    """Whether a first look says that one used the gradient of the other. The proof comes later, of all at once."""
    used = case.window.used[number][:2]
    total = np.sum([one.sketch[0][:2] for one in case.all(other)] or [[0.0, 0.0]], axis=0)
    sizes = hypot(*used) * hypot(*total)
    return bool(sizes) and abs(float(used[0] * total[1] - used[1] * total[0])) <= _NEAR * sizes
