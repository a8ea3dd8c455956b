"""The correct gradient of a window, from the rank's weights and the samples in the plan; and the gradients of a loss at
the model's outputs, by sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from math import inf, lcm
from operator import attrgetter
from typing import NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from conformance.laws.plan import Plan
from conformance.laws.subjects import Rank, Window, fact, forwards_by_number
from conformance.trace import events as trace
from conformance.trace.events import Attempt, BackwardEnd, Forward, Start
from conformance.workloads.model import Model
from conformance.workloads.precision import BF16, FP16, FP32, FP64
from conformance.workloads.reading_plan import rows

Integers = npt.NDArray[np.object_]
Shares = Sequence[tuple[tuple[int, ...], ...]]
"""The samples of each micro-batch of each rank."""
Rounding = tuple[float, float]
"""The rounding error of an element of a gradient relative to the sum of its terms' absolute values, and its absolute
error where small numbers underflow."""

#: The roundings of one element of a gradient in each layer to the format of forward and backward, with a margin.
_ROUNDINGS = 8


class Gradient(NamedTuple):
    """value: the gradient, one element per weight. slack: the bound of the rounding error of each element.

    The gradient, and the sum that the slack is relative to, are computed exactly and then rounded to floats. A slack
    that is too large for a float is infinite, and fits anything.
    """

    value: tuple[float, ...]
    slack: tuple[float, ...]

    def is_times(self, times: float, seen: Sequence[float | None]) -> bool:
        """Whether ``seen`` is this gradient times ``times``, up to rounding, and no element is nearer to the gradient
        itself. None marks unseen elements."""
        for one, right, slack in zip(seen, self.value, self.slack, strict=True):
            if one is not None and slack < inf and abs(one - times * right) > min(times * slack, abs(one - right)):
                return False
        return True


@dataclass(frozen=True)
class Slope:
    """The gradient of a squared error as a function of a model's folded weights: `moments` times (weights, -1).

    ``sizes`` are the same sums over absolute values; rounding errors are relative to them. Both are integers, ``unit``
    times too large, because fractions are slow.
    """

    model: Model
    moments: Integers
    sizes: Integers
    unit: int

    @classmethod
    def of(cls, model: Model, vectors: Sequence[Sequence[float]], coefficients: Sequence[Fraction]) -> Slope:
        """``2 Σ c v vᵀ``; each vector ends with the target."""
        share = lcm(*(one.denominator for one in coefficients))
        parts = np.array([one.numerator * (share // one.denominator) for one in coefficients], object)
        whole, scale = _whole([*chain.from_iterable(vectors)])
        columns = np.array(whole, object).reshape(len(vectors), -1).T
        moments, sizes = (2 * (one * parts) @ one.T for one in (columns, abs(columns)))
        return cls(model, moments[:-1], sizes[:-1], share * scale**2)

    def at(self, weights: Sequence[float], rounding: Rounding) -> Gradient:
        """The gradient by the weights."""
        whole, scale = _whole(weights)
        absolute, depth = list(map(abs, whole)), len(self.model.layers)
        # Folded weights have one factor per layer, and a slope has one factor less.
        unit, one = self.unit * scale ** (2 * depth - 1), scale**depth
        by_folded = self.moments @ np.array([*self.model.folded(whole), -one], object)
        sizes_by_folded = self.sizes @ np.array([*self.model.folded(absolute), one], object)
        values = self.model.slopes(list(by_folded), whole)
        sizes = self.model.slopes(list(sizes_by_folded), absolute)
        relative, least = rounding
        return Gradient(
            tuple(_quotient(value, unit) for value in values),
            tuple(relative * _quotient(size, unit) + least for size in sizes),
        )


def _whole(values: Sequence[float]) -> tuple[list[int], int]:
    """The numbers times a common power of two, as integers, and this power."""
    ratios = [value.as_integer_ratio() for value in values]
    # All denominators are powers of two.
    scale = max(denominator for _, denominator in ratios)
    return [numerator * (scale // denominator) for numerator, denominator in ratios], scale


def _quotient(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return inf


class Expectations:
    """The correct gradients of each window of a plan, in all accepted readings."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # By the identities of the plan's shares: epochs repeat their windows, and hashing them is slow.
        self._known: dict[tuple[int, ...], tuple[tuple[Slope, ...], Rounding]] = {}

    def gradients(self, shares: Shares, weights: Sequence[float]) -> tuple[Gradient, ...]:
        """The gradient of a window at ``weights``, from the plan's own ``shares``: the mean over samples and, if
        micro-batches are uneven, also the mean of their means."""
        identities = tuple(map(id, shares))
        if identities not in self._known:
            samples = sum(len(micro_batch) for share in shares for micro_batch in share)
            self._known[identities] = tuple(self._slopes(shares)), _rounding(self._plan, samples)
        slopes, rounding = self._known[identities]
        return tuple(slope.at(weights, rounding) for slope in slopes)

    def _slopes(self, shares: Shares) -> Iterator[Slope]:
        micro_batches = [micro_batch for share in shares for micro_batch in share if micro_batch]
        indices = tuple(chain.from_iterable(micro_batches))
        if self._plan.spec["loss"] == "weighted":
            weights = {index: Fraction(self._plan.spec["samples"]["weight"][index]) for index in indices}
            total = sum(weights.values(), Fraction(0))
            if total:
                yield self._slope({index: weight / total for index, weight in weights.items()})
        elif indices:
            yield self._slope(dict.fromkeys(indices, Fraction(1, len(set(indices)))))
        if self._plan.spec["loss"] == "mean" and len({len(micro_batch) for micro_batch in micro_batches}) > 1:
            count = len(micro_batches)
            yield self._slope({index: Fraction(1, count * len(one)) for one in micro_batches for index in one})

    def _slope(self, coefficients: dict[int, Fraction]) -> Slope:
        samples, model = self._plan.spec["samples"], self._plan.model
        vectors = [(*model.row(samples["x"][index], 1.0), samples["y"][index]) for index in coefficients]
        return Slope.of(model, vectors, list(coefficients.values()))


@fact
def held(rank: Rank) -> dict[int, tuple[float, ...]]:
    """The weights at the start of each window of a rank, if known and finite: those of its first forward, else those
    after the last step."""
    events: list[Start | Attempt | Forward] = [*rank.of(Start), *rank.of(Attempt)]
    events += [event for event in rank.of(Forward) if event.weights is not None]
    shown = sorted(events, key=attrgetter("seq"))
    found: dict[int, tuple[float, ...]] = {}
    past = 0
    for window in rank.windows:
        first = window.events[0].seq
        while past < len(shown) and shown[past].seq <= first:
            past += 1
        weights = shown[past - 1].weights if past else None
        if are_finite(weights):
            found[window.number] = tuple(weights)
    return found


def are_finite(values: Sequence[object] | None) -> TypeGuard[Sequence[float]]:
    """Whether all of these numbers are present and finite."""
    return values is not None and {float, int}.issuperset(map(type, values))


def _rounding(plan: Plan, samples: int) -> Rounding:
    precision, roundings = plan.precision, _ROUNDINGS * len(plan.model.layers)
    formats = (precision.compute, precision.wire)
    coarsest = max(one.unit_roundoff for one in formats)
    least = samples * FP16.quantum if FP16 in formats else 0
    return float(roundings * coarsest + samples * precision.master.unit_roundoff), float(least)


#: The unit roundoff and the smallest positive number of the formats that a model computes in.
FORMATS: Mapping[str, tuple[float, float]] = {
    one.dtype: (float(one.unit_roundoff), float(one.quantum)) for one in (FP64, FP32, FP16, BF16)
}


@dataclass(frozen=True)
class Term:
    """One sample: the gradient at its output, its residual, their maximal errors, its weight and its target.

    With unit roundoff u, the error of a residual is at most 6 u of its parts: the cast of output and target, and the
    difference, each at most twice. The error of a gradient is at most 16 u of itself, as `oracle.gradient` counts its
    scalings, plus the format's smallest number for underflow.
    """

    gradient: float
    gradient_error: float
    residual: float
    residual_error: float
    weight: float
    target: float

    def weighted(self) -> Term:
        residual, error = self.weight * self.residual, self.weight * self.residual_error
        return replace(self, residual=residual, residual_error=error, weight=1.0)


@dataclass(frozen=True)
class AtOutputs:
    """The samples of one micro-batch in one backward. ``format``: the key in FORMATS of their outputs."""

    end: BackwardEnd
    format: str
    terms: Sequence[Term]


@fact
def at_outputs(rank: Rank) -> Sequence[AtOutputs]:
    """The recorded samples of each backward of a rank. Leaves out several backwards through one forward, which are
    parts of a loss."""
    found: list[AtOutputs] = []
    forwards = forwards_by_number(rank)
    ends = rank.of(BackwardEnd)
    often = Counter(number for end in ends for number in end.forwards)
    for end in ends:
        for number, outputs, gradients in zip(end.forwards, end.outputs, end.output_gradients, strict=False):
            forward = forwards.get(number)
            # The recorder reads the first samples only.
            if forward is not None and often[number] == 1 and len(outputs) == len(gradients) <= len(forward.rows):
                each = _terms(rank.run.plan, forward, outputs, gradients)
                found += (AtOutputs(end, str(forward.computes), terms) for terms in each)
    return found


def is_of_mean(window: Window, end: BackwardEnd, scale: float = 1.0) -> bool:
    """Whether the gradients at the model's outputs are those of the mean over the window, on one rank or all, times
    `scale`, and so carry no other scale."""
    terms = terms_of(window, end)
    return any(
        all(abs(term.gradient - factor * term.residual) <= _error(term, factor) for term in terms)
        # With a larger error, twice the gradient would fit too.
        and any(_error(term, factor) < abs(term.gradient) / 4 for term in terms)
        for factor in (scale * one for one in _factors(window))
    )


@fact
def seen_scale(window: Window) -> float | None:
    """The factor of the squared errors in a window's loss, which includes a loss scale and divisors; None if it has
    none, or several."""
    terms = [term for end in window.of(BackwardEnd) for term in terms_of(window, end)]
    residuals = sum(abs(term.residual) for term in terms)
    factor = sum(abs(term.gradient) for term in terms) / residuals if residuals else 0.0
    fits = all(abs(abs(one.gradient) - factor * abs(one.residual)) <= _error(one, factor) for one in terms)
    return factor if factor and fits else None


def exceeds_mean(window: Window, end: BackwardEnd) -> bool:
    """Whether the gradients at the model's outputs are larger than those of any mean."""
    largest, terms = max(_factors(window), default=0.0), terms_of(window, end)
    return bool(terms) and all(
        abs(term.gradient) - _error(term, largest) > largest * abs(term.residual) for term in terms
    )


def _factors(window: Window) -> Sequence[float]:
    """The factors of residuals in the mean over the window, on one rank and on all."""
    total = weight_of(window)
    return (2 / total, 2 * window.plan.world_size / total) if total else ()


def weight_of(window: Window) -> float:
    """The weight of a window's samples on all ranks, or their number if the loss has no weights."""
    plan = window.plan
    shares = [plan.micro_batches(rank, window.number) for rank in range(plan.world_size)]
    samples = [sample for share in shares for micro_batch in share for sample in micro_batch]
    weights: Sequence[float] = plan.spec["samples"]["weight"]
    return sum(weights[sample] for sample in samples) if plan.is_weighted else len(samples)


def terms_of(window: Window, end: BackwardEnd) -> Sequence[Term]:
    """The terms of a backward, with residuals weighted by the case's loss; none if rows do not identify samples."""
    terms = [term for one in at_outputs(window.rank) if one.end is end for term in one.terms]
    return [term.weighted() if window.plan.is_weighted else term for term in terms]


def _error(term: Term, factor: float) -> float:
    return term.gradient_error + factor * term.residual_error


def _terms(plan: Plan, forward: Forward, outputs: trace.Vector, gradients: trace.Vector) -> Sequence[Sequence[Term]]:
    """The terms of each micro-batch with finite, nonzero gradients. Other gradients are lost by the trainer."""
    if forward.computes is None or forward.computes not in FORMATS:
        return ()
    unit, least = FORMATS[forward.computes]
    window = next((one for one in plan.windows[forward.rank] if one.number == forward.window), None)
    if window is None:
        return ()
    samples = _by_row(plan)[plan.spec["epochs"][window.epoch]]
    found = defaultdict[int, list[Term]](list)
    for row, output, gradient in zip(forward.rows, outputs, gradients, strict=False):
        if row not in samples or not isinstance(output, float) or not isinstance(gradient, float) or not gradient:
            continue
        number, target, weight = samples[row]
        size = abs(output) + abs(target)
        off = 16 * unit * abs(gradient) + least
        found[number].append(Term(gradient, off, output - target, 6 * unit * size, weight, target))
    return list(found.values())


@fact
def _by_row(plan: Plan) -> Sequence[Mapping[int | None, tuple[int, float, float]]]:
    """Micro-batch, target and weight of each sample by its row, for each order, if the row belongs to only one sample.
    Each micro-batch has its own divisor, even if several go forward at once."""
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
