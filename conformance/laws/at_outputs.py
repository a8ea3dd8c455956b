"""What the backward of a loss gives at the model's outputs, sample by sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from conformance.laws.plan import Plan
from conformance.laws.run import Rank, Window, fact
from conformance.trace.events import BackwardEnd, Forward, Vector
from conformance.workloads.plan import rows
from conformance.workloads.precision import BF16, FP16, FP32, FP64

#: The unit roundoff and the least number of the formats that a model computes in.
FORMATS: Mapping[str, tuple[float, float]] = {
    one.dtype: (float(one.unit_roundoff), float(one.quantum)) for one in (FP64, FP32, FP16, BF16)
}


@dataclass(frozen=True)
class Term:
    """What one sample gives: the gradient at its output, its residual, the most by which each is off, its weight.

    With unit roundoff u a residual is off by at most 6 u of its parts: the cast of output and target, and the
    difference, each at most twice. A gradient is off by at most 16 u of itself, as `oracle.gradient` counts its
    scalings, and by the format's least number where it underflows.
    """

    gradient: float
    gradient_error: float
    residual: float
    residual_error: float
    weight: float

    def weighted(self) -> Term:
        residual, error = self.weight * self.residual, self.weight * self.residual_error
        return Term(self.gradient, self.gradient_error, residual, error, 1.0)


@dataclass(frozen=True)
class AtOutputs:
    """The samples of a micro-batch through which a backward went. ``format``: of FORMATS, in which the model computed
    their outputs."""

    end: BackwardEnd
    format: str
    terms: Sequence[Term]


@fact
def at_outputs(rank: Rank) -> Sequence[AtOutputs]:
    """Of each backward of a rank that was read. Several backwards through one forward are parts of a loss, and left
    out."""
    found: list[AtOutputs] = []
    forwards = {event.forward: event for event in rank.of(Forward)}
    ends = rank.of(BackwardEnd)
    often = Counter(number for end in ends for number in end.forwards)
    for end in ends:
        for number, outputs, gradients in zip(end.forwards, end.outputs, end.output_gradients, strict=False):
            forward = forwards.get(number)
            if forward is not None and often[number] == 1 and len(outputs) == len(forward.rows) == len(gradients):
                each = _terms(rank.run.plan, forward, outputs, gradients)
                found += (AtOutputs(end, str(forward.computes), terms) for terms in each)
    return found


def is_of_mean(window: Window, end: BackwardEnd, scale: float = 1.0) -> bool:
    """Whether the gradients at the model's outputs are those of the mean over the window, by one rank or by all, times
    `scale`: then there is no other scale in them."""
    terms = terms_of(window, end)
    return any(
        all(abs(term.gradient - factor * term.residual) <= _error(term, factor) for term in terms)
        # Else twice as much would fit too.
        and any(_error(term, factor) < abs(term.gradient) / 4 for term in terms)
        for factor in (scale * one for one in _factors(window))
    )


def exceeds_mean(window: Window, end: BackwardEnd) -> bool:
    """Whether the gradients at the model's outputs are larger than those of any mean."""
    largest, terms = max(_factors(window), default=0.0), terms_of(window, end)
    return bool(terms) and all(
        abs(term.gradient) - _error(term, largest) > largest * abs(term.residual) for term in terms
    )


def _factors(window: Window) -> Sequence[float]:
    """What the mean over the window multiplies residuals by, by one rank or by all."""
    plan = window.plan
    shares = [plan.micro_batches(rank, window.number) for rank in range(plan.world_size)]
    samples = [sample for share in shares for micro_batch in share for sample in micro_batch]
    total = sum(plan.spec["samples"]["weight"][sample] for sample in samples) if plan.is_weighted else len(samples)
    return (2 / total, 2 * plan.world_size / total) if total else ()


def terms_of(window: Window, end: BackwardEnd) -> Sequence[Term]:
    """Those of a backward, with residuals as the case's loss weighs them; none where rows do not show their samples."""
    terms = [term for one in at_outputs(window.rank) if one.end is end for term in one.terms]
    return [term.weighted() if window.plan.is_weighted else term for term in terms]


def _error(term: Term, factor: float) -> float:
    return term.gradient_error + factor * term.residual_error


def _terms(plan: Plan, forward: Forward, outputs: Vector, gradients: Vector) -> Sequence[Sequence[Term]]:
    """Those of each micro-batch in which gradients are finite and not zero: what is lost is the trainer's bug."""
    if forward.computes is None or forward.computes not in FORMATS:
        return ()
    unit, least = FORMATS[forward.computes]
    window = next((one for one in plan.windows[forward.rank] if one.number == forward.window), None)
    if window is None:
        return ()
    samples = _by_row(plan)[plan.spec["epochs"][window.epoch]]
    found = defaultdict[int, list[Term]](list)
    for row, output, gradient in zip(forward.rows, outputs, gradients, strict=True):
        if row not in samples or not isinstance(output, float) or not isinstance(gradient, float) or not gradient:
            continue
        number, target, weight = samples[row]
        size = abs(output) + abs(target)
        off = 16 * unit * abs(gradient) + least
        found[number].append(Term(gradient, off, output - target, 6 * unit * size, weight))
    return list(found.values())


@fact
def _by_row(plan: Plan) -> Sequence[Mapping[int | None, tuple[int, float, float]]]:
    """In each order: micro-batch, target and weight of each sample by its row, as far as a row belongs to one sample of
    one micro-batch. Each micro-batch has a divisor of its own, also where several go forward at once."""
    samples, row_of = plan.spec["samples"], rows(plan.spec)
    often = Counter(row_of)
    return [
        {
            row_of[sample]: (number, samples["y"][sample], samples["weight"][sample])
            for number, micro_batch in enumerate(chain.from_iterable(order))
            for sample in micro_batch
            if often[row_of[sample]] == 1
        }
        for order in plan.spec["orders"]
    ]
