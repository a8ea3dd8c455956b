"""Comparing what the ranks did with what the oracle allows, step by step, gradients and weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Literal

from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Step
from conformance.verdict.evidence import Attempt, Observed, RankEvidence, rational


@dataclass(frozen=True)
class Difference:
    """The first step and entry in which a rank left the enclosure of the right answer."""

    step: int
    rank: int
    quantity: Literal["gradient", "weights"]
    index: int
    expected: Fraction
    observed: float | None
    bound: Fraction

    @property
    def error(self) -> float | None:
        value = rational((self.observed,))
        return None if value is None else float(abs(value[0] - self.expected))


def first_difference(ranks: Sequence[RankEvidence], expected: Iterable[Step]) -> Difference | None:
    """The first difference over all ranks and steps; None if every rank stays in the enclosure at every step.

    Both sides must have the same number of steps, which the guards check before. In a step, gradients are compared
    before weights.
    """
    for number, steps in enumerate(zip(expected, *(rank.steps for rank in ranks), strict=False)):
        right, taken = steps[0], steps[1:]
        for rank, attempt in enumerate(taken):
            # A rank that agrees with one already compared needs no check of its own.
            if rank and (attempt.gradients, attempt.weights) == (taken[rank - 1].gradients, taken[rank - 1].weights):
                continue
            found = outside(right.gradient, attempt.gradients)
            quantity: Literal["gradient", "weights"] = "gradient"
            if found is None:
                found = outside(right.weights, attempt.weights)
                quantity = "weights"
            if found is not None:
                box = right.gradient if quantity == "gradient" else right.weights
                seen = attempt.gradients if quantity == "gradient" else attempt.weights
                observed = seen[found] if found < len(seen) else None
                return Difference(number, rank, quantity, found, box.center[found], observed, box.radius[found])
    return None


def outside(box: Enclosure, observed: Observed) -> int | None:
    """The first entry of ``observed`` that is missing or not in ``box``."""
    for index, (center, radius, value) in enumerate(zip_longest(box.center, box.radius, observed)):
        exact = rational((value,))
        if center is None or exact is None or abs(exact[0] - center) > radius:
            return min(index, len(box.center) - 1)
    return None


def matches(ranks: Sequence[RankEvidence], expected: Sequence[Step]) -> bool:
    """Whether every rank took these steps and stayed in their enclosures."""
    return all(len(rank.steps) == len(expected) for rank in ranks) and first_difference(ranks, expected) is None


@dataclass(frozen=True)
class Divergence:
    """The first window after which ranks hold different weights, and what each holds.

    ``step`` counts the optimizer steps that rank 0 has taken before it.
    """

    window: int
    step: int
    weights: tuple[Observed, ...]


def first_divergence(ranks: Sequence[RankEvidence]) -> Divergence | None:
    """Ranks must agree to the bit after every window in every precision: they see the same averaged gradients."""
    step = 0
    for attempts in zip(*(rank.attempts for rank in ranks), strict=False):
        if any(_differ(attempts[0], other) for other in attempts[1:]):
            window = min(attempt.window for attempt in attempts)
            return Divergence(window, step, tuple(attempt.weights for attempt in attempts))
        step += attempts[0].stepped
    return None


def _differ(one: Attempt, other: Attempt) -> bool:
    return (one.stepped, one.window) != (other.stepped, other.window) or not same(one.weights, other.weights)


def same(one: Observed, other: Observed) -> bool:
    """Whether two ranks hold the same numbers; all NaNs are equal, and so are both zeros."""
    return one == other or [str(value) for value in one] == [str(value) for value in other]
