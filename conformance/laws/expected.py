"""The right gradient of a window, computed from the weights that the rank held and the samples in the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import inf, lcm
from operator import attrgetter, mul
from typing import NamedTuple, TypeGuard

from conformance.laws.plan import Plan
from conformance.laws.run import Rank, fact
from conformance.trace.events import Attempt, Forward, Start
from conformance.workloads.model import Model
from conformance.workloads.precision import FP16

Vector = tuple[int, ...]
Matrix = tuple[Vector, ...]
Shares = Sequence[tuple[tuple[int, ...], ...]]
"""The samples of each micro-batch of each rank."""
Rounding = tuple[float, float]
"""The rounding error of an element of a gradient relative to the sum of its terms' absolute values, and its absolute
error where small numbers underflow."""

#: How often one element of a gradient is rounded to the format of forward and backward in each layer, with a margin.
_ROUNDINGS = 8


class Gradient(NamedTuple):
    """value: the gradient, one element for each weight. slack: the bound of the rounding error of each element.

    The gradient, and the sum to which the slack is relative, are computed exactly and then rounded to floats; a slack
    too large for a float is infinite, and fits anything.
    """

    value: tuple[float, ...]
    slack: tuple[float, ...]

    def is_times(self, times: float, seen: Sequence[float | None]) -> bool:
        """Whether ``seen`` is this gradient multiplied by ``times``, up to rounding, and no element is nearer to the
        gradient itself. None marks elements not seen."""
        for one, right, slack in zip(seen, self.value, self.slack, strict=True):
            if one is not None and slack < inf and abs(one - times * right) > min(times * slack, abs(one - right)):
                return False
        return True

    def possible_times(self, seen: Sequence[float | None]) -> tuple[float, float]:
        """The least and the largest ``times`` for which `is_times` can hold, from the first element that bounds it."""
        for one, value, slack in zip(seen, self.value, self.slack, strict=True):
            if one is None or value == 0 or slack == inf:
                continue
            # As far from the element on the other side as the gradient itself.
            mirrored = 2 * one / value - 1
            least, most = min(1.0, mirrored), max(1.0, mirrored)
            if slack < abs(value):
                least = max(least, abs(one) / (abs(value) + slack))
                most = min(most, abs(one) / (abs(value) - slack))
            # The margin covers the rounding of these quotients.
            margin = 1e-9 * (1 + abs(mirrored))
            return least - margin, most + margin
        return 0.0, inf


@dataclass(frozen=True)
class Slope:
    """The gradient of a squared error as a function of the folded weights of a model: ``matrix @ folded - offset``.

    ``size`` and ``size_offset`` are the same sums over absolute values; rounding errors are relative to them. All are
    integers, ``denominator`` times too large, because fractions are slow.
    """

    model: Model
    matrix: Matrix
    offset: Vector
    size: Matrix
    size_offset: Vector
    denominator: int

    def at(self, weights: Sequence[float], rounding: Rounding) -> Gradient:
        """The gradient by the weights."""
        ratios = [weight.as_integer_ratio() for weight in weights]
        # All denominators are powers of two.
        scale = max(denominator for _, denominator in ratios)
        whole = [numerator * (scale // denominator) for numerator, denominator in ratios]
        # Folded weights have a factor for each layer, and a slope has one less.
        absolute, depth = list(map(abs, whole)), len(self.model.layers)
        folded, sizes_of_folded = self.model.folded(whole), self.model.folded(absolute)
        unit, one = self.denominator * scale ** (2 * depth - 1), scale**depth
        by_folded = [
            sum(map(mul, row, folded)) - constant * one for row, constant in zip(self.matrix, self.offset, strict=True)
        ]
        sizes_by_folded = [
            sum(map(mul, row, sizes_of_folded)) + constant * one
            for row, constant in zip(self.size, self.size_offset, strict=True)
        ]
        values = self.model.slopes(by_folded, whole)
        sizes = self.model.slopes(sizes_by_folded, absolute)
        relative, least = rounding
        return Gradient(
            tuple(_quotient(value, unit) for value in values),
            tuple(relative * _quotient(size, unit) + least for size in sizes),
        )


class Expectations:
    """The right gradients of each window of a plan, in all readings that are accepted."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # By the identities of the plan's shares: epochs repeat their windows, and to hash these takes long.
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
        moments, sizes, denominator = _moments(vectors, list(coefficients.values()))
        return Slope(
            model,
            tuple(row[:-1] for row in moments[:-1]),
            moments[-1][:-1],
            tuple(row[:-1] for row in sizes[:-1]),
            sizes[-1][:-1],
            denominator,
        )


@fact
def held(rank: Rank) -> dict[int, tuple[float, ...]]:
    """The weights at the start of each window of a rank, where they are known and finite: those that its first forward
    uses, else those after the last step."""
    events: list[Start | Attempt | Forward] = [*rank.of(Start), *rank.of(Attempt)]
    events += [event for event in rank.of(Forward) if event.weights is not None]
    shown = sorted(events, key=attrgetter("seq"))
    found: dict[int, tuple[float, ...]] = {}
    past = 0
    for window in rank.windows:
        first = window.events[0].seq
        while past < len(shown) and shown[past].seq <= first:
            past += 1
        weights = finite_vector(shown[past - 1].weights) if past else None
        if weights is not None:
            found[window.number] = weights
    return found


def finite_vector(values: Sequence[object] | None) -> tuple[float, ...] | None:
    """These numbers if all are present and finite, otherwise None."""
    return tuple(values) if _are_numbers(values) else None


def _are_numbers(values: Sequence[object] | None) -> TypeGuard[Sequence[float]]:
    return values is not None and {float, int}.issuperset(map(type, values))


def _moments(vectors: Sequence[Sequence[float]], coefficients: Sequence[Fraction]) -> tuple[Matrix, Matrix, int]:
    """``2 Σ c v vᵀ``, and the same of absolute values, as integers; the third result is their common denominator."""
    ratios = [[value.as_integer_ratio() for value in column] for column in zip(*vectors, strict=True)]
    unit = max(denominator for column in ratios for _, denominator in column)
    columns = [[numerator * (unit // denominator) for numerator, denominator in column] for column in ratios]
    absolute = [list(map(abs, column)) for column in columns]
    share = lcm(*{coefficient.denominator for coefficient in coefficients})
    weights = [2 * one.numerator * (share // one.denominator) for one in coefficients]

    def moments(columns: Sequence[Sequence[int]]) -> Matrix:
        weighted = [list(map(mul, weights, column)) for column in columns]
        return tuple(tuple(sum(map(mul, one, other)) for other in columns) for one in weighted)

    return moments(columns), moments(absolute), share * unit**2


def _quotient(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return inf


def _rounding(plan: Plan, samples: int) -> Rounding:
    precision, roundings = plan.precision, _ROUNDINGS * len(plan.model.layers)
    formats = (precision.compute, precision.wire)
    coarsest = max(one.unit_roundoff for one in formats)
    least = samples * FP16.quantum if FP16 in formats else 0
    return float(roundings * coarsest + samples * precision.master.unit_roundoff), float(least)
