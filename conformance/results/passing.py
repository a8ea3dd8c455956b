"""What a record of a case that passed must hold: all that passing proves, and nothing against it."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from itertools import pairwise

from .records import PASSED, CaseRecord, Step, Vector

#: Others are absent, or empty, where the gradients of a step could not be read.
_ALWAYS = ("expected", "observed")
_PROOFS = ("id", "guards", "ranks", "parameters", "steps", "certificate", "power")
_OF_FAILURES = ("mistake", "explained_by", "gradient_factors", "step_factors", "undeclared")


def against_passing(case: CaseRecord, required: Collection[str]) -> str | None:
    """Why a case did not pass, whatever its verdict says; None if nothing is against it, or it did not pass.

    `required`: the laws that are a MUST, by the header.
    """
    if case.verdict not in PASSED:
        return None
    if why := _against(case, required) or _unproven(case) or _out_of_order(case):
        return why
    return next(filter(None, (_wrong(step, case) for step in case.steps)), None)


def _against(case: CaseRecord, required: Collection[str]) -> str | None:
    broken = [finding.law for finding in case.findings if finding.level == "MUST" or finding.law in required]
    failing = [guard.name for guard in case.guards if not guard.holds]
    failed = [
        rank for rank in case.ranks if (rank.exit != "exited 0" and not rank.delivered) or rank.stack or rank.traceback
    ]
    if broken:
        return f"it broke {broken[0]}"
    if failing:
        return f"the guard {failing[0]!r} does not hold"
    if failed:
        return f"rank {failed[0].rank} failed"
    if case.first_difference is not None or case.diverged is not None:
        return "its numbers are wrong"
    if case.unjudged is not None:
        return "it was not judged"
    return next((f"it has {name}" for name in _OF_FAILURES if getattr(case, name)), None)


def _unproven(case: CaseRecord) -> str | None:
    if missing := [name for name in _PROOFS if not getattr(case, name)]:
        return f"it has no {missing[0]}"
    assert case.certificate is not None and case.power is not None
    is_exact = case.certificate.exact
    if is_exact != (case.verdict == "PASS (exact)"):
        return f"its certificate says {'exact' if is_exact else 'not exact'}"
    rounding = [stage.stage for stage in case.certificate.stages if not stage.exact]
    if is_exact and rounding:
        return f"its certificate says that {rounding[0]} is not exact"
    # Also where it is not a number.
    return None if case.power.value > 1 else f"its power is {case.power.value:g}: a known bug would pass, too"


def _out_of_order(case: CaseRecord) -> str | None:
    if [rank.rank for rank in case.ranks] != [*range(len(case.ranks))]:
        return "its ranks are not one each from 0"
    # A long trajectory is recorded with gaps.
    numbers = [(step.step, step.window) for step in case.steps]
    is_rising = all(one < other for name in zip(*numbers, strict=True) for one, other in pairwise(name))
    return None if numbers[0][0] == 0 and is_rising else "its steps are not in order from 0"


def _wrong(step: Step, case: CaseRecord) -> str | None:
    """What is wrong with the numbers of a step."""
    count = len(case.parameters)
    for name, vector in vars(step).items():
        if isinstance(vector, tuple):
            if len(vector) != count and (vector or name in _ALWAYS):
                return f"step {step.step} has {len(vector)} numbers in {name}, and the case has {count} parameters"
            if any(value is not None and not math.isfinite(value) for value in vector):
                return f"step {step.step} has a number in {name} that is not finite"
    bounds = [*(step.bound or ()), *(step.gradient_bound or ())]
    if case.verdict == "PASS (exact)" and any(bounds):
        return f"step {step.step} has a bound"
    gradients = (step.gradient_expected, step.gradient_observed, step.gradient_error, step.gradient_bound)
    are_seen = step.gradient_observed is not None and any(value is not None for value in step.gradient_observed)
    if not _are_right(step.expected, step.observed, step.error, step.bound):
        return f"the weights after step {step.step} are wrong"
    if are_seen and not _are_right(*gradients):
        return f"the gradients in step {step.step} are wrong"
    return None


def _are_right(expected: Vector | None, observed: Vector | None, error: Vector | None, bound: Vector | None) -> bool:
    """Whether each observed number is within its bound of the expected one, and its error says so."""
    if not expected or not observed:
        return False
    nothing = (None,) * len(expected)
    return all(map(_is_right, expected, observed, error or nothing, bound or nothing))


def _is_right(expected: float | None, observed: float | None, error: float | None, bound: float | None) -> bool:
    if expected is None or observed is None:
        return False
    if not bound and expected != observed:
        return False
    # All were rounded to the nearest float when they were written, but for what the trainer computed.
    rounding, distance = _half_ulp(expected), abs(Fraction(observed) - Fraction(expected))
    if error is not None and abs(Fraction(error) - distance) > rounding + _half_ulp(error):
        return False
    return (error or 0) <= (bound or 0) and (not bound or distance <= Fraction(bound) + rounding + _half_ulp(bound))


def _half_ulp(value: float) -> Fraction:
    return Fraction(math.ulp(value)) / 2
