"""Whether a trainer used the precision of the case, and wrong numbers that are right except for rounding."""

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
from conformance.verdict.judgement import Judgement
from conformance.verdict.scaling import is_seen, shows_uneven_scale
from conformance.workloads.precision import Precision
from conformance.workloads.problem import Problem


def ignored_precision(reading: Reading, right: Trajectory, ranks: Sequence[RankEvidence]) -> str | None:
    """What is wrong if the numbers fit the narrow bound of a run without low precision although they should not.

    Low precision must show in a step in which casting the weights to the compute format, or the gradient to the wire
    format, changes the gradient by more than that bound. In certified workloads nothing rounds and there is no such
    step; the bounded workloads of the same path have one.
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
    return f"the numbers are those of {master.name}: the trainer {what} in {master.name}, not in {low.name}"


def of_hidden_masters(precision: Precision, right: Trajectory, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the weights are the right ones at the end and, until then, these rounded to the compute format."""
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
    """Whether ``precision`` shows in ``steps``, which ``rule`` gives without it; clipped steps are not considered."""
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


_UNEVEN_SCALE = (
    "the numbers are right but for what a loss scale that is no power of two rounds off, and the trainer's own cannot "
    "be seen: begin with `task.loss_scale`, or scale with `task.grad_scaler()`"
)
_UNASKED_SCALE = (
    "the numbers are right but for what a loss scale of {:g}, which is no power of two, rounds off in a case that asks "
    "for none: use `task.grad_scaler()`, which is enabled where the precision needs it"
)


def rounded(case: Case, judgement: Judgement) -> str | None:
    """Why wrong numbers may be rounded ones; None if something speaks against it."""
    difference = judgement.difference
    if difference is None or judgement.divergence or not judgement.allows("rounding"):
        return None
    precision = case.problem.precision
    if shows_uneven_scale(judgement.runs[0].ranks[0], case.problem) and _fits_uneven_scale(
        case.problem, judgement.ranks
    ):
        return _UNEVEN_SCALE
    if (scale := _unasked_scale(case.problem, judgement.ranks)) is not None:
        return _UNASKED_SCALE.format(scale)
    if difference.quantity != "weights":
        return None
    if judgement.trajectory is not None and of_hidden_masters(precision, judgement.trajectory, judgement.ranks):
        return (
            f"until the last step, the forwards show the right weights rounded to {precision.compute.name}, and what "
            "they were rounded from cannot be seen; keep that in the module that task.model() returns, or step tensors "
            "of its shapes with torch.optim.Optimizer"
        )
    if odd_part(case.world_size) == 1 or not averages_weights(judgement.runs[0]):
        return None
    if not _fits_averaged_weights(case.problem, judgement.ranks):
        return None
    return (
        f"the numbers are right but for what averaging weights after each step may round on {case.world_size} ranks: "
        "run the case on 2 or 4"
    )


def _fits_averaged_weights(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the weights are within the bound for ranks that average them after each step."""
    accepted, history = accepted_by(problem, ranks)
    averaging = (reading.by(None, AVERAGES_WEIGHTS) for reading in accepted)
    return fit(without_gradients(ranks), averaging, history)


def _fits_uneven_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the numbers are within the bound for a loss scale that the recorder does not know and that is no power of
    two. Which it is matters little for what it rounds off: three quarters of the task's."""
    accepted, history = accepted_by(problem, ranks)
    if history is None or is_seen(ranks):
        return False
    uneven = replace(history, scales=(problem.workload.scale.init_scale * Fraction(3, 4),) * problem.workload.steps)
    return fit(ranks, accepted, uneven)


def _unasked_scale(problem: Problem, ranks: Sequence[RankEvidence]) -> float | None:
    """The loss scale, no power of two, of a GradScaler that is enabled though nothing is to be scaled, if the numbers
    are within the bound for it; None if not, or if there is none."""
    scales = [scale for rank in ranks for attempt in rank.attempts if (scale := exactly(attempt.scale))]
    uneven = next((scale for scale in scales if odd_part(scale.numerator) > 1), None)
    if uneven is None or problem.precision.scaled:
        return None
    accepted, history = accepted_by(replace(problem, precision=replace(problem.precision, scaled=True)), ranks)
    return float(uneven) if fit(ranks, accepted, history) else None
