"""How wrong the numbers of a case are: one number, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from math import hypot, inf, isfinite

from conformance.results.result_lines import CaseRecord, Vector

from .text import number, plural


def effect(case: CaseRecord) -> str | None:
    """The size of the error: of all steps, of the first wrong one, or between ranks. None without wrong numbers."""
    if case.diverged is not None:
        first, *others = case.diverged.weights
        shares = [share for other in others if (share := _share(first, other))]
        if not shares:
            return None
        return f"the weights of the ranks differ by {_percent(max(shares))} of their norm"
    for what, factors in (("gradients", case.gradient_factors), ("the update", case.step_factors)):
        if len(factors) == 1:
            return _factor(what, factors[0])
    if case.first_difference is not None:
        said = (_compared(*one, case.first_difference.step) for one in _compared_vectors(case))
        return next(filter(None, said), None)
    if case.skips and len(case.scales) > 1:
        # The last scale is that after the last window.
        scales = f"the loss scale goes from {number(case.scales[0])} to {number(case.scales[-1])}"
        return f"{len(case.skips)} of {plural(len(case.scales) - 1, 'window')} are skipped, and {scales}"
    return None


def _compared_vectors(case: CaseRecord) -> Iterator[tuple[str, Vector, Vector]]:
    """What to compare in the first wrong step, the most telling first, with the expected and the observed entries."""
    first, steps = case.first_difference, {step.step: step for step in case.steps}
    if first is None or (step := steps.get(first.step)) is None:
        return
    if first.quantity == "gradient":
        yield "gradients", step.gradient_expected or (), step.gradient_observed or ()
    if (before := steps.get(first.step - 1)) is not None:
        yield "the update", _moved(before.expected, step.expected), _moved(before.observed, step.observed)
    yield "weights", step.expected, step.observed


def _moved(before: Vector, after: Vector) -> Vector:
    both = zip(before, after, strict=False)
    return tuple(None if one is None or other is None else other - one for one, other in both)


def _compared(what: str, expected: Vector, observed: Vector, at: int) -> str | None:
    """None if they are equal, or if the expected ones are zero."""
    pairs = [(right, seen) for right, seen in zip(expected, observed, strict=False) if right is not None]
    lost = sum(seen is None or not isfinite(seen) for _, seen in pairs)
    if lost:
        if None in [seen for _, seen in pairs] and what == "gradients":
            return f"the optimizer lacks {lost} of {len(pairs)} entries of the gradients in step {at}"
        how = "missing" if None in [seen for _, seen in pairs] else "infinite or NaN"
        return f"{lost} of {len(pairs)} entries of {what} are {how} in step {at}"
    factors = [seen / right if right else 1.0 for right, seen in pairs if seen is not None and (right or seen)]
    if factors and max(factors) - min(factors) <= 1e-6 * abs(factors[0]) and number(factors[0], 3) != "1":
        return _factor(what, factors[0], at)
    share = _share(expected, observed)
    return f"{what} {_verb(what)} off by {_percent(share)} of {_norm(what)} in step {at}" if share else None


_SMALL, _LARGE = 0.1, 1000
"""Factors beyond these are whole numbers, without a power of ten."""


def _factor(what: str, factor: float, at: int | None = None) -> str:
    """How a single factor shows. at: the step; None for all steps."""
    if what == "the update" and factor >= _SMALL:
        which = "each step" if at is None else f"step {at}"
        return f"{which} moves the weights {_sized(factor)}x as far as it should"
    if 0 < factor < _SMALL:
        said = f"{what} {_verb(what)} {_sized(1 / factor)}x too small"
    else:
        said = f"{what} {_verb(what)} {_sized(factor)}x the correct {'one' if _verb(what) == 'is' else 'ones'}"
    return said if at is None else f"{said} in step {at}"


def _sized(factor: float) -> str:
    return f"{factor:,.0f}" if _LARGE <= factor < inf else number(factor, 3)


def _norm(what: str) -> str:
    return "its norm" if _verb(what) == "is" else "their norm"


def _verb(what: str) -> str:
    return "is" if what.startswith("the ") else "are"


def _share(expected: Vector, observed: Vector) -> float | None:
    """The norm of the error, relative to that of the expected entries."""
    pairs = [
        (right, seen) for right, seen in zip(expected, observed, strict=False) if right is not None and seen is not None
    ]
    norm, error = hypot(*(right for right, _ in pairs)), hypot(*(seen - right for right, seen in pairs))
    return error / norm if norm and isfinite(error) else None


def _percent(share: float) -> str:
    return f"{100 * share:,.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"
