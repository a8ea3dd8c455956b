"""Solves for the factors of a window's parts in wrong gradients: of each parameter, rank or micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product, zip_longest
from typing import Literal, TypeAlias

import numpy as np

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.recurrence import Deviation, Recurrence, times
from conformance.results.result_lines import Vector as Numbers
from conformance.trace.events import Clip
from conformance.verdict.comparison import outside
from conformance.verdict.evidence import RankEvidence, exactly, overlaid, values
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector

Kind: TypeAlias = Literal["parameter", "rank", "micro-batch"]
ONE = Fraction(1)
#: The largest denominator of a factor.
_SIMPLE = 64
#: More ranks have too many counts to try.
_MOST_RANKS = 4


@dataclass(frozen=True)
class Combination:
    """Gradients that are the correct ones with a factor for each part. ``factors``: those that are not 1, with the
    numbers of their parts."""

    kind: Kind
    factors: tuple[tuple[int, Fraction], ...]


def combination(
    problem: Problem, rank: RankEvidence, explains: Callable[[Deviation], bool], windows: int
) -> Combination | None:
    """The only factors of parts that give the numbers of ``windows`` windows. ``explains``: whether a deviation does.

    There are more numbers than unknowns: each part has one factor, and each element of each step is an equation.
    """
    seen = _before_clip(rank)
    equations = sum(any(numbers or ()) and len(numbers or ()) for numbers in seen[:windows])
    for kind, solver in _SOLVERS:
        factors = dict[int, Fraction]()
        solved = type("Solved", (solver,), {"seen": seen, "factors": factors})
        if explains(Deviation(f"multiplies each {kind} by a factor", solved)):
            wrong = tuple((part, factor) for part, factor in sorted(factors.items()) if factor != 1)
            if wrong and len({*factors.values()}) > 1 and len(factors) < equations:
                return Combination(kind, wrong)
    return None


def _before_clip(rank: RankEvidence) -> list[Numbers | None]:
    """The gradients of each step before the clip, if one was seen."""
    clips = [one for one in rank.events.of(Clip) if one.gradients is not None]
    found: list[Numbers | None] = []
    for step in rank.steps:
        own = [values(one.gradients or ()) for one in clips if one.window == step.seen_in]
        gradients = overlaid(own) if own and rank.shard is None else step.gradients
        found.append(gradients and tuple(value or 0.0 for value in gradients))
    return found


class _Solved(Recurrence):
    """Multiplies parts of each gradient by factors, which the first wrong gradient shows."""

    seen: Sequence[Numbers | None]
    factors: dict[int, Fraction]

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        right = super().trained(window, weights, coefficients)
        seen = self.seen[self.taken] if self.taken < len(self.seen) else None
        if seen is not None:
            self.solve(window, weights, coefficients, right, seen)
        return self.multiplied(window, weights, coefficients, right)

    def solve(self, window: Window, weights: Affine, coefficients: Vector, right: Affine, seen: Numbers) -> None:
        """Finds factors that are still unknown."""
        raise NotImplementedError

    def multiplied(self, window: Window, weights: Affine, coefficients: Vector, right: Affine) -> Affine:
        """The gradient with these factors."""
        raise NotImplementedError


class _ByParameter(_Solved):
    """Some parameters have one factor, and the others are correct."""

    def solve(self, window: Window, weights: Affine, coefficients: Vector, right: Affine, seen: Numbers) -> None:
        tensor_of = self.problem.workload.model.tensor_of
        for tensor, center, value in zip(tensor_of, right.center, map(exactly, seen), strict=False):
            if center and value is not None and tensor not in self.factors:
                self.factors[tensor] = (value / center).limit_denominator(_SIMPLE)

    def multiplied(self, window: Window, weights: Affine, coefficients: Vector, right: Affine) -> Affine:
        if len({1, *self.factors.values()}) != 2 or 1 not in self.factors.values():
            return right
        return self.joined((right.scaled(self.factors.get(n, ONE)), [n]) for n in self.tensors)


class _ByPart(_Solved):
    def solve(self, window: Window, weights: Affine, coefficients: Vector, right: Affine, seen: Numbers) -> None:
        parts = self.parts(window)
        if self.factors or len(parts) < 2 or outside(right.enclosure(), seen) is None:
            return
        columns = [super(_Solved, self).trained(window, weights, only(coefficients, [part])) for part in parts]
        matrix = np.array([[float(value) for value in column.center] for column in columns]).T
        found, _, order, _ = np.linalg.lstsq(matrix, np.array(seen), rcond=None)
        if order == len(parts) and np.isfinite(found).all():
            self.factors.update(enumerate(Fraction(float(one)).limit_denominator(_SIMPLE) for one in found))

    def multiplied(self, window: Window, weights: Affine, coefficients: Vector, right: Affine) -> Affine:
        if not self.factors:
            return right
        of = {index: self.factors.get(number, ONE) for number, part in enumerate(self.parts(window)) for index in part}
        own = tuple(c * of.get(index, ONE) for index, c in enumerate(coefficients))
        return super(_Solved, self).trained(window, weights, own)

    def parts(self, window: Window) -> list[tuple[int, ...]]:
        """The samples of each part."""
        raise NotImplementedError


class _ByRank(_ByPart):
    def parts(self, window: Window) -> list[tuple[int, ...]]:
        return [tuple(chain(*share)) for share in window.shares if share]


class _ByMicroBatch(_ByPart):
    def parts(self, window: Window) -> list[tuple[int, ...]]:
        return [tuple(chain(*own)) for own in zip_longest(*window.shares, fillvalue=())]


class _ByCount(_Solved):
    """Each window counts the gradients and weights of each rank a number of times, as many as there are ranks."""

    counts: Sequence[int] = ()

    def solve(self, window: Window, weights: Affine, coefficients: Vector, right: Affine, seen: Numbers) -> None:
        size = window.with_data
        self.counts = (1,) * size
        if size > _MOST_RANKS or outside(right.enclosure(), seen) is None:
            return
        for counts in product(range(size + 1), repeat=size):
            if sum(counts) == size:
                self.counts = counts
                tried = self.multiplied(window, weights, coefficients, right)
                if outside(tried.enclosure(), seen) is None:
                    break
        if not self.factors:
            self.factors.update(enumerate(map(Fraction, self.counts)))

    def multiplied(self, window: Window, weights: Affine, coefficients: Vector, right: Affine) -> Affine:
        if set(self.counts) == {1}:
            return right
        of = {index: count for count, share in zip(self.counts, window.shares, strict=False) for index in chain(*share)}
        own = tuple(c * of.get(index, 0) for index, c in enumerate(coefficients))
        total = sum(own, Fraction(0))
        every = times(own, sum(coefficients, Fraction(0)) / total) if total else own
        return super(_Solved, self).trained(window, weights, every)


_SOLVERS: Sequence[tuple[Kind, type[_Solved]]] = (
    ("parameter", _ByParameter),
    ("rank", _ByRank),
    ("rank", _ByCount),
    ("micro-batch", _ByMicroBatch),
)


def names_of(factor: Fraction, problem: Problem) -> Iterator[str]:
    """Yields what a factor is, in words, if it is a number of the layout, or 1 divided by it."""
    layout = problem.layout
    for number, words in ((layout.world_size, "ranks"), (layout.accumulation, "micro-batches")):
        if number > 1 and factor in (number, Fraction(1, number)):
            yield f"{'' if factor > 1 else '1 / '}the number of {words}"
