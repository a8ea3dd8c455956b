"""Explains wrong numbers by the first wrong one."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from math import isclose

from conformance.cases.case import Case
from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Affine, Enclosure
from conformance.oracle.recurrence import Deviation, Recurrence, Step, Trajectory
from conformance.results.result_lines import Quantity
from conformance.results.result_lines import Vector as Values
from conformance.trace.events import BackwardEnd, Clip, Collective, Schedule, Start, StateInit, Vector
from conformance.trace.events import Step as Taken
from conformance.trace.short_texts import enumerated, number
from conformance.verdict.combinations import ONE, Combination, names_of
from conformance.verdict.comparison import Difference, other_than, outside
from conformance.verdict.evidence import RankEvidence, at, exactly, overlaid, place, values
from conformance.verdict.judgement import (
    LEFT_OUT,
    MULTIPLE,
    ONCE,
    OTHER_ORDER,
    PARAMETERS,
    PARTS,
    PLACE,
    POSITION,
    RESTORED,
    SAMPLES,
    WEIGHTS,
    Guard,
    Told,
    adds_to,
    guard,
)
from conformance.verdict.observability import kept_over_step, split_apart
from conformance.verdict.orders import in_first_order, resumed_in_other_order
from conformance.verdict.stop_and_resume import (
    between_windows,
    left_behind,
    other_gradients,
    other_state,
    other_weights,
)
from conformance.verdict.work import left_over, unread
from conformance.workloads.model import Model
from conformance.workloads.problem import Problem


class _BeforeClip(Recurrence):
    """The textbook, with the gradient of its last window before the clip."""

    unclipped: Affine

    def clip(self, vector: Affine) -> Affine:
        self.unclipped = vector
        return super().clip(vector)


def first_wrong(
    case: Case,
    ranks: Sequence[RankEvidence],
    difference: Difference,
    reading: Reading,
    right: Trajectory,
    combined: Combination | None = None,
) -> Guard | None:
    """The problem that the first wrong number shows: weights that changed before training, samples that were never
    read, a parameter without a gradient on any rank, a gradient whose parts have wrong factors, as in ``combined``, or
    that is a multiple of the correct one, a step at a wrong learning rate, or weights that changed after a correct
    step; else the parameters that are wrong."""
    found = _first_wrong(case, ranks, difference, right)
    if combined is not None and (found is None or found.name == MULTIPLE):
        found = _combined(case.problem, combined)
    if found is not None or difference.observed is None:
        return found and replace(found, ground="explanation")
    rank, window = ranks[difference.rank], right.steps[difference.step].window
    compared = _compared(rank, difference, reading, right)
    places = (_wrong_in_part(case.problem.workload.model, window, *each) for each in compared)
    return next(filter(None, places), None)


def _compared(
    rank: RankEvidence, difference: Difference, reading: Reading, right: Trajectory
) -> Iterator[tuple[Quantity, Enclosure, Values]]:
    """Yields the vectors with the first wrong number: the gradient before the clip, which spreads an error to all
    parameters, and what the step shows."""
    expected, own = right.steps[difference.step], rank.steps[difference.step]
    if difference.quantity == "weights":
        yield "weights", expected.weights, own.weights
        return
    clips = [one for one in rank.events.of(Clip) if one.window == own.seen_in]
    seen = [values(one.gradients) for one in clips if one.gradients is not None]
    if seen and rank.shard is None:
        textbook = reading.recurrence(right.history, Deviation("clips", _BeforeClip))
        deque(islice(textbook.steps(), difference.step + 1), maxlen=0)
        assert isinstance(textbook, _BeforeClip)
        yield "gradient", textbook.unclipped.enclosure(), tuple(value or 0.0 for value in overlaid(seen))
    yield "gradient", expected.gradient, own.gradients or ()


def _first_wrong(case: Case, ranks: Sequence[RankEvidence], difference: Difference, right: Trajectory) -> Guard | None:
    if difference.step == 0 and (early := _changed_early(case, ranks)) is not None:
        return early
    rank, expected = ranks[difference.rank], right.steps[difference.step]
    if case.resumed_at is not None and expected.window >= case.resumed_at:
        model, is_missing = case.problem.workload.model, difference.observed is None
        restored: dict[str, Callable[[], Told | None]] = {
            "weights": lambda: other_weights(ranks),
            "gradients": lambda: other_gradients(case, ranks),
            "parameters of the optimizer": lambda: left_behind(model, ranks) if is_missing else None,
            "state of the optimizer": lambda: other_state(model, ranks),
        }
        for what, look in restored.items():
            if (other := look()) is not None:
                return guard(RESTORED, "on every rank", other, diagnosis=f"resumed with other {what}")
    if (kept := kept_over_step(rank, difference.step)) is not None:
        return guard("forwards use what was stepped", "in each window", kept, "older gathered weights")
    if (left := left_over(case, ranks, expected.window)) is not None:
        return adds_to(*left)
    if (order := in_first_order(case, ranks) or resumed_in_other_order(case, ranks)) is not None:
        return guard("order of each epoch", "another one", order, "that of another one", OTHER_ORDER)
    if (off := between_windows(case, ranks)) is not None:
        return guard(PLACE, f"window {case.resumed_at}", off, diagnosis=POSITION)
    if (lost := unread(case, ranks)) is not None:
        return guard(SAMPLES, "in each epoch", lost, diagnosis=LEFT_OUT, advice=ONCE)
    if difference.quantity == "gradient":
        if difference.observed is None:
            return _stepped_in_part(case, ranks, difference, right)
        if (infinite := _divided_by_zero(case, rank, expected.window)) is not None:
            return infinite
        return _multiplied(case, rank, difference, right)
    return _stepped_wrongly(case, ranks, difference, right)


def _stepped_wrongly(
    case: Case, ranks: Sequence[RankEvidence], difference: Difference, right: Trajectory
) -> Guard | None:
    """A step at a wrong learning rate, or weights that changed after a correct step."""
    rank = ranks[difference.rank]
    taken, expected = rank.taken(difference.step), right.steps[difference.step]
    if taken is None:
        return None
    asked = _rate(case, difference.step, right)
    if taken.lr is not None and asked is not None and not isclose(float(taken.lr), asked, rel_tol=1e-6):
        window, seen = expected.window, number(float(taken.lr))
        text = f"the step of window {window} has the learning rate {seen} instead of {number(asked)}"
        set_by = [event for event in rank.events.between(Schedule, before=taken) if not event.initial]
        where = place(set_by[-1] if set_by else taken)
        return guard("learning rate of each step", f"{number(asked)} in window {window}", text, seen, where=where)
    if (undone := _undone(case, ranks, difference, expected)) is not None:
        return undone
    if taken.weights is None or outside(expected.weights, values(taken.weights)) is not None:
        return None
    text = (
        f"the optimizer's step of window {expected.window} is correct, but rank {difference.rank} changes its weights "
        "after it"
    )
    where = f"rank {difference.rank}, after the step of window {expected.window}"
    advice = "change weights only in steps"
    return guard("weights stay as they are stepped", "until the next step", text, where, advice=advice)


def _undone(case: Case, ranks: Sequence[RankEvidence], difference: Difference, expected: Step) -> Guard | None:
    """Some parameters that a step leaves unchanged, or that are changed back after it."""
    model, start = case.problem.workload.model, case.problem.workload.start
    rank, step = ranks[difference.rank], difference.step
    before = rank.steps[step - 1].weights if step else start
    box = zip(expected.weights.center, expected.weights.radius, strict=True)
    now = [*map(exactly, rank.steps[step].weights)]
    if len(now) != len(start) or None in now:
        return None
    pairs = zip(now, box, strict=True)
    wrong = [value is None or abs(value - center) > radius for value, (center, radius) in pairs]
    kept = [value == old for value, old in zip(now, before, strict=True)]
    tensors = {tensor for tensor, is_wrong in zip(model.tensor_of, wrong, strict=True) if is_wrong}
    own = [index for index, tensor in enumerate(model.tensor_of) if tensor in tensors]
    # One element may be unchanged by chance in a step, or on a rank.
    later = [one.weights for each in ranks for one in each.steps[step:]]
    is_proof = len(own) > 1 or (
        len(own) == 1
        and len(rank.steps) > step + 1
        and all(len(one) == len(start) and one[own[0]] == before[own[0]] for one in later)
    )
    if not is_proof or not all(kept[index] for index in own) or len(tensors) == len(model.tensors):
        return None
    names = enumerated([model.tensors[tensor].name for tensor in sorted(tensors)])
    text = f"the step of window {expected.window} leaves {names} as before; all other parameters are correct"
    advice = "step each parameter, and broadcast it from the rank that steps it"
    return guard(PARAMETERS, "stepped", text, f"{names} unchanged", "steps undone", advice=advice)


def _changed_early(case: Case, ranks: Sequence[RankEvidence]) -> Guard | None:
    if (apart := split_apart(case, ranks)) is not None:
        return _early(apart, "before training", "ranks apart before training")
    starts = [[float(value) for value in case.problem.workload.start_of(at)] for at in range(len(ranks))]
    return _stepped_early(ranks, starts) or _reduced_early(ranks, starts[: case.world_size])


def _early(text: str | Told, observed: str, diagnosis: str, where: str | None = None) -> Guard:
    return guard(WEIGHTS, "not before training", text, observed, diagnosis, where=where)


def _stepped_early(ranks: Sequence[RankEvidence], starts: Sequence[Sequence[float]]) -> Guard | None:
    for rank, planned in zip(ranks, starts, strict=True):
        for event in rank.events.of(StateInit):
            if event.weights and other_than([planned], event.weights):
                text = (
                    f"a step with zero gradients changed the weights before training{at(place(event))}: weight decay "
                    "applies, and AdamW counts the step; Horovod's `broadcast_optimizer_state` takes such a step for a "
                    "new optimizer"
                )
                seen = f"rank {rank.number}, before training"
                return _early(text, seen, "a step before training", place(event))
    return None


def _reduced_early(ranks: Sequence[RankEvidence], starts: Sequence[Sequence[float]]) -> Guard | None:
    """Weights that ranks reduced before training to neither the mean of the task's weights nor those of one rank."""
    mean = [sum(column) / len(starts) for column in zip(*starts, strict=True)]
    for rank in ranks:
        initial = rank.events.first(Start)
        before = rank.events.between(Collective, before=initial)
        reduced = [event for event in before if event.of == "parameters" and event.reduce]
        other = other_than([mean], initial.weights) if initial is not None and initial.weights and reduced else None
        if initial is None or other is None or not all(other_than([start], initial.weights or ()) for start in starts):
            continue
        where = place(reduced[-1])
        text = Told(
            f"the ranks reduced their weights before training{at(where)}: a weight is {number(other[0])} instead of "
            f"{number(other[1])}",
            "divide the sum by the number of ranks, or broadcast the weights of one rank",
        )
        seen = f"rank {rank.number}, before training"
        return _early(text, seen, "weights reduced before training", where)
    return None


def _rate(case: Case, step: int, right: Trajectory) -> float | None:
    """The expected learning rate of a step; None if parameters have several, or a skipped step leaves it open."""
    workload = case.problem.workload
    if workload.groups or right.skips:
        return None
    if workload.schedule_by == "epoch":
        step = next(one.epoch for one in case.problem.windows if one.index == right.steps[step].window)
    return float(workload.optimizer.lr * (workload.schedule[step] if workload.schedule else 1))


def _stepped_in_part(
    case: Case, ranks: Sequence[RankEvidence], difference: Difference, right: Trajectory
) -> Guard | None:
    taken = [rank.steps[difference.step].gradients for rank in ranks if difference.step < len(rank.steps)]
    model = case.problem.workload.model
    without = {
        tensor
        for index, tensor in enumerate(model.tensor_of)
        if all(gradients is not None and gradients[index : index + 1] == (None,) for gradients in taken)
    }
    if not without:
        return None
    names = enumerated([model.tensors[tensor].name for tensor in sorted(without)])
    window = ranks[difference.rank].steps[difference.step].window
    elsewhere = {one for step in ranks[difference.rank].events.of(Taken) for one in step.parameters}
    if without <= elsewhere and right.overflows[window : window + 1] not in ((), ("impossible",)):
        skipped = Told(
            f"only the step of {names} is skipped in window {window}, which may overflow",
            "skip the step of all parameters if the gradient of any is infinite",
        )
        return guard("parameters that an overflow skips", "all", skipped, f"only {names} in window {window}")
    text = Told(
        f"{names} had no gradient in the step of window {window}, or no optimizer that stepped",
        "give every parameter that the forwards use to an optimizer, and step it in each window",
    )
    return guard("all parameters stepped", "in each window", text, f"not {names} in window {window}")


def _divided_by_zero(case: Case, rank: RankEvidence, window: int) -> Guard | None:
    """A window with a loss whose gradients are not finite at finite outputs, without a loss scale that may overflow."""
    if case.arithmetic.scaled:
        return None
    ends = (end for end in rank.events.of(BackwardEnd) if end.window == window and _are_finite(end.outputs))
    infinite = next((end for end in ends if not _are_finite(end.output_gradients)), None)
    if infinite is None:
        return None
    when = f"window {window}" + ", the first after the resume," * (window == case.resumed_at)
    text = (
        f"the gradients of the loss in {when} are not finite{at(place(infinite))}, although the model's outputs are: "
        "it is divided by zero"
    )
    return guard("gradients are finite", "in each window", text, "not finite", where=place(infinite))


def _are_finite(vectors: Sequence[Vector]) -> bool:
    return not any(isinstance(value, str) for vector in vectors for value in vector)


def _multiplied(case: Case, rank: RankEvidence, difference: Difference, right: Trajectory) -> Guard | None:
    """A window whose gradient is a multiple of the correct one, after correct windows."""
    step = right.steps[difference.step]
    seen = map(exactly, rank.steps[difference.step].gradients or ())
    pairs = [(one, two) for one, two in zip(seen, step.gradient.center, strict=False) if one != 0 or two]
    ratios = [one / two for one, two in pairs if one and two]
    if difference.step == 0 or not 1 < len(ratios) == len(pairs):
        return None
    least, most = min(ratios), max(ratios)
    times = least.limit_denominator(1024)
    if times <= 0 or most - least > least / 64 or abs(least - 1) < Fraction(1, 16):
        return None
    said = f"{number(float(times))}x"
    text = (
        f"the gradients of window {step.window} are {said} the correct ones in every element; earlier windows are "
        "correct"
    )
    may_be_unscaled = case.arithmetic.scaled and max(times, 1 / times).numerator.bit_count() == 1
    advice = "if the loss scale changes, unscale by the scale that the loss was multiplied by" * may_be_unscaled
    return guard(MULTIPLE, "correct", text, f"{said} the correct ones", advice=advice)


_ADVICE = {
    "parameter": "divide the gradients of all parameters alike",
    "rank": "count each rank's gradients once, and receive those of each in a separate buffer",
    "micro-batch": "divide the gradients of all micro-batches alike, and add each once",
}


def _combined(problem: Problem, combined: Combination) -> Guard:
    """Parts of the gradients with other factors than the rest."""
    model, kind, by_factor = problem.workload.model, combined.kind, defaultdict[Fraction, list[str]](list)
    for part, factor in combined.factors:
        if factor != 1:
            by_factor[factor].append(model.tensors[part].name if kind == "parameter" else str(part))
    said = []
    for factor, own in by_factor.items():
        # Counts of ranks are no divisors.
        names = [] if kind == "rank" else [*names_of(factor, problem)]
        plural = f"{kind}{'es' * kind.endswith('h') or 's'}" if own[1:] else kind
        parts = enumerated(own) if kind == "parameter" else f"{plural} {enumerated(own)}"
        words = f" ({' or '.join(names)})" if names else ""
        said.append(f"those of {parts} are {number(float(factor))}x{words}")
    observed = " and ".join(said)
    rest = "; all others are correct" if ONE in dict(combined.factors).values() else ""
    text = f"{observed.replace('those', 'the gradients', 1)} of the correct ones{rest}"
    return guard(PARTS, "correct", text, observed, f"factors by {kind}", advice=_ADVICE[kind])


def _wrong_in_part(
    model: Model, window: int, quantity: Quantity, box: Enclosure, seen: Sequence[float | None]
) -> Guard | None:
    """A minority of parameters that are wrong."""
    numbers = zip(model.is_used, model.tensor_of, box.center, box.radius, map(exactly, seen), strict=False)
    elements = [
        (tensor, is_used)
        for is_used, tensor, center, radius, value in numbers
        if value is None or abs(value - center) > radius
    ]
    wrong = {tensor for tensor, _ in elements}
    # Of two parameters, one may be correct by chance.
    if not wrong or 2 * len(wrong) >= len(model.tensors):
        return None
    names = enumerated([model.tensors[tensor].name for tensor in sorted(wrong)])
    is_gradient = quantity == "gradient"
    what, when = ("the gradient of ", "in") if is_gradient else ("", "after")
    are = "is" if is_gradient or len(wrong) == 1 else "are"
    text = f"{what}{names} {are} wrong {when} window {window}; all other parameters are correct"
    if not any(is_used for _, is_used in elements):
        text += "; the wrong elements are unused by the model, so their gradients are zero"
    if all(model.tensors[tensor].places > 1 for tensor in wrong):
        text += f"; {names} is one parameter that the model uses in several places"
    return guard(PARAMETERS, "correct", text, f"not of {names}", ground="place")
