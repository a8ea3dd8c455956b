"""Compares the ranks' gradients and weights with the oracle's enclosures, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

from conformance.oracle.affine import Enclosure
from conformance.oracle.recurrence import Step
from conformance.results.result_lines import Quantity, Vector
from conformance.trace.events import Number
from conformance.verdict.evidence import Attempt, RankEvidence, exactly


@dataclass(frozen=True)
class Difference:
    """The first step and entry in which a rank left the enclosure of the correct answer."""

    step: int
    rank: int
    quantity: Quantity
    index: int
    expected: Fraction
    observed: float | None
    bound: Fraction

    @property
    def error(self) -> Fraction | None:
        """The distance of the observed value from the expected one; None if it is missing or not finite."""
        observed = exactly(self.observed)
        return None if observed is None else abs(observed - self.expected)

    def described(self, parameters: Sequence[str], window: int) -> str:
        """The difference in one line. ``window``: that of its step."""
        parameter, expected = parameters[self.index], float(self.expected)
        what = f"the gradient of {parameter} is" if self.quantity == "gradient" else f"{parameter} becomes"
        when = f"step {self.step}" + (f" (window {window})" if window != self.step else "")
        digits = 9 if self.observed is None or f"{self.observed:.9g}" != f"{expected:.9g}" else 17
        seen = "missing" if self.observed is None else f"{self.observed:.{digits}g}"
        allowed = f" ± {float(self.bound):.2g}" if self.bound else ""
        return f"{when}, rank {self.rank}: {what} {seen}, expected {expected:.{digits}g}{allowed}"


def other_than(starts: Sequence[Sequence[float]], weights: Sequence[Number | None]) -> tuple[Number, float] | None:
    """The first of the weights outside the range of all ``starts``, allowing for a cast to bfloat16, and the nearest
    value in the range; None if all are inside."""
    for seen, *asked in zip(weights, *starts, strict=False):
        nearest = asked[0] if seen is None or isinstance(seen, str) else min(max(seen, min(asked)), max(asked))
        if seen is not None and (isinstance(seen, str) or abs(seen - nearest) > abs(nearest) / 2**7):
            return seen, nearest
    return None


def first_difference(ranks: Sequence[RankEvidence], expected: Iterable[Step]) -> Difference | None:
    """The first difference over all ranks and steps; None if every rank stays in the enclosure at every step.

    Both sides must have the same number of steps, which the guards check before. In a step, known gradients are
    compared before weights.
    """
    for number, steps in enumerate(zip(expected, *(rank.steps for rank in ranks), strict=False)):
        right, taken = steps[0], steps[1:]
        for rank, attempt in enumerate(taken):
            # A rank that agrees with the previous one needs no check.
            if rank and (attempt.gradients, attempt.weights) == (taken[rank - 1].gradients, taken[rank - 1].weights):
                continue
            compared: tuple[tuple[Quantity, Enclosure, Vector | None], ...] = (
                ("gradient", right.gradient, attempt.gradients),
                ("weights", right.weights, attempt.weights),
            )
            for quantity, box, seen in compared:
                if seen is None:
                    continue
                index = outside(box, seen)
                if index is not None:
                    observed = seen[index] if index < len(seen) else None
                    # Blame the first rank that owns a sharded element.
                    if not ranks[rank].has(index):
                        rank = next((at for at, one in enumerate(ranks) if one.has(index)), rank)
                    return Difference(number, rank, quantity, index, box.center[index], observed, box.radius[index])
    return None


def outside(box: Enclosure, observed: Vector) -> int | None:
    """The first entry of ``observed`` that is missing or not in ``box``."""
    for index, (center, radius, value) in enumerate(zip_longest(box.center, box.radius, observed)):
        exact = exactly(value)
        if center is None or exact is None or abs(exact - center) > radius:
            return min(index, len(box.center) - 1)
    return None


def matches(ranks: Sequence[RankEvidence], expected: Sequence[Step]) -> bool:
    """Whether every rank took these steps and stayed in their enclosures."""
    return all(len(rank.steps) == len(expected) for rank in ranks) and first_difference(ranks, expected) is None


@dataclass(frozen=True)
class Divergence:
    """The first window after which ranks have different weights, and these weights.

    ``step``: the number of optimizer steps that rank 0 took before it.
    """

    window: int
    step: int
    weights: tuple[Vector, ...]


def first_divergence(ranks: Sequence[RankEvidence]) -> Divergence | None:
    """Finds the first divergence: ranks see the same averaged gradients, so their weights must be bit-identical after
    every window in every precision. If all ranks have the same number of windows, window numbers may differ."""
    step, as_many = 0, len({len(rank.attempts) for rank in ranks}) == 1
    for attempts in zip(*(rank.attempts for rank in ranks), strict=False):
        if any(_differ(attempts[0], other, by_window=not as_many) for other in attempts[1:]):
            window = min(attempt.window for attempt in attempts)
            return Divergence(window, step, tuple(attempt.weights for attempt in attempts))
        step += attempts[0].stepped
    return None


def _differ(one: Attempt, other: Attempt, *, by_window: bool) -> bool:
    elsewhere = by_window and one.window != other.window
    return elsewhere or one.stepped != other.stepped or not same(one.weights, other.weights)


def same(one: Vector, other: Vector) -> bool:
    """Whether two ranks have the same numbers; all NaNs are equal, and so are both zeros."""
    return one == other or [str(value) for value in one] == [str(value) for value in other]
