"""What a record of a case that passed must hold: all that passing proves, and nothing against it."""

from __future__ import annotations

import math
from fractions import Fraction

from .records import PASSED, CaseRecord, Step, Vector

#: Others are absent, or empty, where the gradients of a step could not be read.
_ALWAYS = ("expected", "observed")


def against_passing(case: CaseRecord) -> str | None:
    """Why a case did not pass, whatever its verdict says; None if nothing is against it, or it did not pass."""
    if case.verdict not in PASSED:
        return None
    return _against(case) or _unproven(case) or next(filter(None, (_wrong(step, case) for step in case.steps)), None)


def _against(case: CaseRecord) -> str | None:
    broken = [finding.law for finding in case.findings if finding.level == "MUST"]
    failing = [guard.name for guard in case.guards if not guard.holds]
    if broken:
        return f"it broke {broken[0]}"
    if failing:
        return f"the guard {failing[0]!r} does not hold"
    if case.first_difference is not None or case.diverged is not None:
        return "its numbers are wrong"
    return None if case.unjudged is None else "it was not judged"


def _unproven(case: CaseRecord) -> str | None:
    proofs = {"id": case.id, "guards": case.guards, "parameters": case.parameters, "steps": case.steps}
    if missing := [name for name, proof in proofs.items() if not proof]:
        return f"it has no {missing[0]}"
    if case.certificate is None:
        return "it has no certificate"
    if case.certificate.exact != (case.verdict == "PASS (exact)"):
        return f"its certificate says {'exact' if case.certificate.exact else 'not exact'}"
    return None


def _wrong(step: Step, case: CaseRecord) -> str | None:
    """What is wrong with the numbers of a step."""
    count = len(case.parameters)
    for name, vector in vars(step).items():
        if isinstance(vector, tuple):
            if len(vector) != count and (vector or name in _ALWAYS):
                return f"step {step.step} has {len(vector)} numbers in {name}, and the case has {count} parameters"
            if any(value is not None and not math.isfinite(value) for value in vector):
                return f"step {step.step} has a number in {name} that is not finite"
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
    zeros = (0.0,) * len(expected)
    return all(map(_is_right, expected, observed, error or zeros, bound or zeros))


def _is_right(expected: float | None, observed: float | None, error: float | None, bound: float | None) -> bool:
    if expected is None or observed is None or abs(error or 0) > (bound or 0):
        return False
    if not bound or expected == observed:
        return expected == observed
    # Both were rounded to the nearest float when they were written.
    rounding = Fraction(math.ulp(expected)) / 2 + Fraction(math.ulp(bound)) / 2
    return abs(Fraction(observed) - Fraction(expected)) <= Fraction(bound) + rounding
