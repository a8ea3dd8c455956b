"""Checks that a trainer used the precision of the case, and finds numbers that are only wrong by rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from conformance.cases.case import Case
from conformance.laws.sharing import averages_weights
from conformance.oracle.accepted_readings import AVERAGES_WEIGHTS, Reading
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, Step, Trajectory
from conformance.oracle.rounding import nearest, odd_part
from conformance.trace.events import Forward
from conformance.verdict.answers import accepted_by, fit, without_gradients
from conformance.verdict.comparison import matches
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.verdict.judgement import Judgement, Told
from conformance.verdict.scaling import is_seen, shows_uneven_scale
from conformance.workloads.precision import Precision
from conformance.workloads.problem import Problem


def ignored_precision(reading: Reading, right: Trajectory, ranks: Sequence[RankEvidence]) -> str | None:
    """A sentence if the numbers fit the narrow bound of a run without low precision, but should not.

    Low precision must show in a step if casting the weights to the compute format, or the gradient to the wire format,
    changes the gradient by more than that bound. Certified workloads have no such step, because nothing rounds; the
    bounded workloads of the same path have one.
    """
    precision = reading.problem.precision
    if not (precision.mixed or precision.compressed) or right.certificate.exact:
        return None
    master = precision.master
    high = replace(reading.problem, precision=replace(precision, compute=master, wire=master))
    rule = replace(reading, problem=high).recurrence(right.history)
    steps = tuple(rule.steps())
    if not _must_show(rule, precision, steps) or not matches(ranks, steps):
        return None
    low = precision.compute if precision.mixed else precision.wire
    what = "computes" if precision.mixed else "sends gradients"
    return f"the trainer {what} in {master.name} instead of {low.name}: its numbers match {master.name}"


def of_hidden_masters(precision: Precision, right: Trajectory, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the last weights are correct, and all earlier ones are correct after rounding to the compute format."""
    # Until the first step, masters look like any other tensor.
    is_rounded = any(event.rounded and event.window for rank in ranks for event in rank.events.of(Forward))
    if not precision.mixed or not right.steps or not is_rounded:
        return False
    unit = precision.compute.unit_roundoff
    *most, last = right.steps
    rounded = [replace(step, weights=_widened(step.weights, unit)) for step in most]
    return matches(ranks, [*rounded, last])


def _widened(box: Enclosure, unit: Fraction) -> Enclosure:
    """All values within ``unit``, relative to the largest in each interval, of a value in it."""
    pairs = zip(box.center, box.radius, strict=True)
    return replace(box, radius=tuple(radius + unit * (abs(center) + radius) for center, radius in pairs))


def _must_show(rule: Recurrence, precision: Precision, steps: Sequence[Step]) -> bool:
    """Whether ``precision`` must show in ``steps``, which ``rule`` gives without it. Ignores clipped steps."""
    weights = rule.problem.workload.start
    for step in steps:
        window = next(one for one in rule.problem.windows if one.index == step.window)
        form = rule.form(window, rule.coefficients(window))
        cast = tuple(nearest(weight, precision.compute) for weight in weights)
        low = (nearest(entry, precision.wire) for entry in form.gradient(cast))
        if form.gradient(weights) == step.gradient.center and any(
            abs(one - other) > 2 * radius
            for one, other, radius in zip(low, step.gradient.center, step.gradient.radius, strict=True)
        ):
            return True
        weights = step.weights.center
    return False


_UNEVEN_SCALE = Told(
    "the numbers are correct except for the rounding of a loss scale that is not a power of two, and the trainer's own "
    "scale is not visible",
    "start with `task.loss_scale`, or scale with `task.grad_scaler()`",
)
_UNASKED_SCALE = (
    "the numbers are correct except for the rounding of a loss scale of {:g}, which is not a power of two, in a case "
    "without loss scaling"
)


def rounded(case: Case, judgement: Judgement) -> Told | None:
    """Whether rounding may explain wrong numbers, in words; None if not."""
    difference = judgement.difference
    if difference is None or judgement.divergence or not judgement.allows("rounding"):
        return None
    precision = case.problem.precision
    if shows_uneven_scale(judgement.runs[0].ranks[0], case.problem) and _fits_uneven_scale(
        case.problem, judgement.ranks
    ):
        return _UNEVEN_SCALE
    if (scale := _unasked_scale(case.problem, judgement.ranks)) is not None:
        advice = "use `task.grad_scaler()`, which is enabled only if the precision needs it"
        return Told(_UNASKED_SCALE.format(scale), advice)
    if difference.quantity != "weights":
        return None
    if judgement.trajectory is not None and of_hidden_masters(precision, judgement.trajectory, judgement.ranks):
        return Told(
            f"until the last step, the forwards show the correct weights rounded to {precision.compute.name}, and the "
            "full weights are not visible",
            "keep them in `task.model()`, or step tensors of its shapes with `torch.optim.Optimizer`",
        )
    if odd_part(case.world_size) == 1 or not averages_weights(judgement.runs[0]):
        return None
    if not _fits_averaged_weights(case.problem, judgement.ranks):
        return None
    return Told(
        f"the numbers are correct except for the rounding of averaged weights on {case.world_size} ranks",
        "run the case on 2 or 4 ranks",
    )


def _fits_averaged_weights(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the weights are within the bound for ranks that average them after each step."""
    accepted, history = accepted_by(problem, ranks)
    averaging = (reading.by(None, AVERAGES_WEIGHTS) for reading in accepted)
    return fit(without_gradients(ranks), averaging, history)


def _fits_uneven_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the numbers are within the bound for an unknown loss scale that is not a power of two. Its exact value
    hardly matters for the rounding: assumes three quarters of the task's scale."""
    accepted, history = accepted_by(problem, ranks)
    if history is None or is_seen(ranks):
        return False
    uneven = replace(history, scales=(problem.workload.scale.init_scale * Fraction(3, 4),) * problem.workload.steps)
    return fit(ranks, accepted, uneven)


def _unasked_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> float | None:
    """The loss scale, no power of two, of a GradScaler that is enabled without need, if the numbers are within the
    bound for it; else None."""
    scales = [scale for rank in ranks for attempt in rank.attempts if (scale := exactly(attempt.scale))]
    uneven = next((scale for scale in scales if odd_part(scale.numerator) > 1), None)
    if uneven is None or problem.precision.scaled:
        return None
    accepted, history = accepted_by(replace(problem, precision=replace(problem.precision, scaled=True)), ranks)
    return float(uneven) if fit(ranks, accepted, history) else None
