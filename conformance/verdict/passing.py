"""Right numbers: whether wrong ones would have been noticed."""

from __future__ import annotations

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.power import PROBE, bounded, power
from conformance.oracle.recurrence import Trajectory
from conformance.oracle.rounding import odd_part
from conformance.results.records import Reason
from conformance.verdict.comparison import first_difference
from conformance.verdict.diagnosis import HORIZON, acquitted
from conformance.verdict.judgement import Judgement

_WEIGHTS_ALONE = "only weights were compared: the gradients that the steps used could not be read"


def passed(reading: Reading, right: Trajectory, judgement: Judgement) -> None:
    """The numbers are right; check that wrong ones would have been noticed."""
    moved = bounded(reading.recurrence(right.history, PROBE).steps(HORIZON))
    judgement.verdict = "INCONCLUSIVE"
    if not right.steps:
        judgement.reason = Reason("no step")
        judgement.headline = "every window was skipped, so there is nothing to compare; start with a lower loss scale"
        return
    by_weights = judgement.by_weights
    judgement.power = power(reading, right, HORIZON, by_weights=by_weights)
    compared = "weights" if by_weights else "weights and gradients"
    if any(rank.reported for rank in judgement.ranks):
        compared = f"reported {compared}"
        judgement.ways = (*judgement.ways, "weights=reported")
    if by_weights:
        judgement.notes.append(_WEIGHTS_ALONE)
    passes = None
    if first_difference(judgement.ranks, moved) is None:
        passes = PROBE.text
    elif judgement.power is not None and not judgement.power.sufficient:
        passes = judgement.power.fault.text
    if passes is not None:
        judgement.reason = Reason("too little power")
        judgement.headline = _too_little_power(reading, right, by_weights)
        judgement.notes.insert(0, f"a trainer that {passes} could pass")
        return
    judgement.suspects = acquitted(reading)
    judgement.verdict = "PASS (exact)" if right.certificate.exact else "PASS (bounded)"
    how = "equal to the oracle to the bit" if right.certificate.exact else "within the rounding-error bound"
    judgement.headline = f"{len(right.steps)} steps, {compared} {how} on every rank"


def _too_little_power(reading: Reading, right: Trajectory, by_weights: bool) -> str:
    """Why right numbers prove too little, and what would make them prove more."""
    scale = reading.problem.workload.scale
    if reading.problem.precision.scaled and right.scales[0] != scale.init_scale:
        return (
            f"the loss scale begins at {float(right.scales[0]):g}, which leaves the numbers for which this case shows "
            f"mistakes: use task.grad_scaler(), or begin with {float(scale.init_scale):g}"
        )
    if (uneven := next((one for one in right.scales if odd_part(one.numerator) > 1), None)) is not None:
        return (
            f"the loss scale becomes {float(uneven):g}, at which fp16 rounds, and the error bound is too wide to tell "
            "right from wrong: use task.grad_scaler(), or factors that are powers of two"
        )
    if by_weights:
        return (
            "the weights are right, but what would show here is in the gradients, and those that the steps used could "
            "not be read: step with one optimizer of torch's that holds all parameters, or take the cases with SGD for "
            "an answer"
        )
    return "this case's error bound is too wide to tell right from wrong: take the cases that are exact for an answer"
