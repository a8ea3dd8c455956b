"""Whether a trainer really used the precision of the case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Recurrence, Step, Trajectory
from conformance.oracle.rounding import nearest
from conformance.trace.events import Forward
from conformance.verdict.comparison import matches
from conformance.verdict.evidence import RankEvidence
from conformance.workloads.precision import Precision


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
