"""A judgement as a line of the results file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from conformance.cases.case import Case
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Certificate, Step
from conformance.verdict.evidence import Observed, RankEvidence, rational
from conformance.verdict.judge import Judgement
from conformance.verdict.paths import shortened
from conformance.verdict.story import story
from conformance.verdict.traffic import traffic
from conformance.workloads.precision import Format

#: Steps that the results file keeps of a long run: all of the first ones, then every so many.
_FIRST, _LATER = 20, 40


def header(case: Case, trainer: str, target: str, command: str) -> dict[str, Any]:
    """What is known of a case before it runs."""
    return {
        "id": case.id,
        "trainer": trainer,
        "target": target,
        "backend": case.backend,
        "layout": case.layout,
        "path": case.path,
        "world_size": case.world_size,
        "accumulation": case.accumulation,
        "precision": case.precision,
        "workload": case.workload,
        "device": case.device,
        "command": command,
    }


def record(case: Case, judgement: Judgement, seconds: float) -> dict[str, Any]:
    """The evidence and the verdict, as plain JSON values."""
    trajectory = judgement.trajectory
    difference = judgement.difference
    shown = judgement.ranks[0 if difference is None else difference.rank] if judgement.ranks else None
    return {
        "micro_batch_size": case.problem.layout.micro_batch_size,
        "verdict": judgement.verdict,
        "headline": judgement.headline,
        "notes": judgement.notes,
        "seconds": round(seconds, 4),
        "certificate": None if trajectory is None else _certificate(trajectory.certificate),
        "power": _power(judgement),
        "guards": [
            {"name": g.name, "holds": g.holds, "expected": g.expected, "observed": g.observed} for g in judgement.guards
        ],
        "parameters": list(case.problem.workload.parameters),
        "steps": []
        if trajectory is None or shown is None
        else _steps(trajectory.steps, shown, case.arithmetic.master, None if difference is None else difference.step),
        "skips": [] if trajectory is None else sorted(trajectory.skips),
        "scales": list(map(float, trajectory.scales)) if trajectory and case.arithmetic.scaled else [],
        "diverged": None
        if judgement.divergence is None
        else {
            "step": judgement.divergence.step,
            "weights": [list(w) for w in judgement.divergence.weights],
        },
        "first_difference": _difference(judgement, case.problem.workload.parameters),
        "diagnosis": judgement.diagnosis,
        "semantics": judgement.semantics,
        "ranks": [_rank(rank) for rank in judgement.ranks],
        "traffic": None if judgement.run is None else traffic(judgement.run),
        **story(judgement),
    }


def _certificate(certificate: Certificate) -> dict[str, Any]:
    stages = [
        {
            "stage": proof.stage,
            "exact": proof.exact,
            "bits": proof.bits if proof.exact or proof.bits else None,
            "available": proof.available,
            "step": proof.window,
        }
        for proof in certificate.tightest()
    ]
    return {"exact": certificate.exact, "stages": stages, "reason": certificate.reason}


def _power(judgement: Judgement) -> dict[str, Any] | None:
    if judgement.power is None:
        return None
    gap, fault = judgement.power.gap, judgement.power.fault
    return {"value": math.inf if gap is None else _float(gap), "fault": fault.name, "text": fault.text}


def _steps(expected: Sequence[Step], rank: RankEvidence, fmt: Format, first_wrong: int | None) -> list[dict[str, Any]]:
    every = max(1, (len(expected) - _FIRST) // _LATER)
    always = {len(expected) - 1, first_wrong}
    return [
        {
            "step": number,
            "window": right.window,
            **_quantity("", right.weights, attempt.weights),
            "ulp": _ulps(right.weights, attempt.weights, fmt),
            **_quantity("gradient_", right.gradient, attempt.gradients),
        }
        for number, (right, attempt) in enumerate(zip(expected, rank.steps, strict=False))
        if number < _FIRST or number % every == 0 or number in always
    ]


def _quantity(prefix: str, box: Enclosure, observed: Observed) -> dict[str, Any]:
    values = [rational((value,)) for value in observed]
    errors = [
        None if value is None else _float(abs(value[0] - center))
        for value, center in zip(values, box.center, strict=False)
    ]
    return {
        f"{prefix}expected": [_float(center) for center in box.center],
        f"{prefix}observed": list(observed),
        f"{prefix}error": errors,
        f"{prefix}bound": [_float(radius) for radius in box.radius],
    }


def _ulps(box: Enclosure, observed: Observed, fmt: Format) -> list[float | None]:
    values = [rational((value,)) for value in observed]
    return [
        None if value is None else _float(abs(value[0] - center) / fmt.ulp(center))
        for value, center in zip(values, box.center, strict=False)
    ]


def _difference(judgement: Judgement, parameters: Sequence[str]) -> dict[str, Any] | None:
    difference = judgement.difference
    if difference is None:
        return None
    return {
        "step": difference.step,
        "quantity": difference.quantity,
        "parameter": parameters[difference.index],
        "expected": _float(difference.expected),
        "observed": difference.observed,
        "error": difference.error,
        "bound": _float(difference.bound),
    }


def _rank(rank: RankEvidence) -> dict[str, Any]:
    return {
        "rank": rank.outcome.rank,
        "exit": rank.outcome.exit,
        "host": rank.outcome.host,
        "output": shortened(rank.outcome.output),
        "stack": rank.outcome.stack and shortened(rank.outcome.stack),
        "traceback": shortened(rank.raised["traceback"]) if rank.raised else None,
        "collectives": {
            op: {"count": entry["count"], "bytes": entry["bytes"]} for op, entry in sorted(rank.collectives.items())
        },
    }


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
