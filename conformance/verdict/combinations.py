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
    """Gradients that are the correct ones with a factor for each part. ``factors``: by the numbers of the parts, those
    that are 1 as well."""

    kind: Kind
    factors: tuple[tuple[int, Fraction], ...]


def combination(problem: Problem, rank: RankEvidence, explains: Callable[[Deviation], bool]) -> Combination | None:
    """The only factors of parts that give the rank's numbers. ``explains``: whether a deviation does.

    There are more numbers than unknowns: each part has one factor, and each number with a narrow bound is an equation.
    """
    for kind, solver in _SOLVERS:
        factors, told = dict[int, Fraction](), list[int]()
        solved = type("Solved", (solver,), {"seen": _before_clip(rank), "factors": factors, "told": told})
        fits = explains(Deviation(f"multiplies each {kind} by a factor", solved))
        if fits and len({*factors.values()}) > 1 and len(factors) < sum(told):
            return Combination(kind, tuple(sorted(factors.items())))
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
    #: The numbers of each window whose bounds tell factors apart.
    told: list[int]

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        right = super().trained(window, weights, coefficients)
        seen = self.seen[self.taken] if self.taken < len(self.seen) else None
        if seen is not None:
            self.solve(window, weights, coefficients, right, seen)
        found = self.multiplied(window, weights, coefficients, right)
        if seen is not None:
            box = found.enclosure()
            self.told.append(sum(_SIMPLE * r < abs(c) for c, r in zip(box.center, box.radius, strict=True)))
        return found

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
                self.factors[tensor] = _simple(value / center)

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


def _simple(factor: Fraction) -> Fraction:
    """A factor without its rounding: a simple one, or 1 divided by a simple one if it is small."""
    is_small = 0 < abs(factor) < Fraction(1, _SIMPLE // 2)
    return 1 / (1 / factor).limit_denominator(_SIMPLE) if is_small else factor.limit_denominator(_SIMPLE)


def names_of(factor: Fraction, problem: Problem) -> Iterator[str]:
    """Yields what a factor is, in words, if it is a number of the layout or the loss scale, or 1 divided by it."""
    layout, scale = problem.layout, problem.workload.scale.init_scale if problem.precision.scaled else 1
    numbers = {
        "number of ranks": layout.world_size,
        "number of micro-batches": layout.accumulation,
        "number of samples in a window": problem.workload.batch_size,
        "loss scale": scale,
    }
    for words, one in numbers.items():
        if one > 1 and factor in (one, Fraction(1) / one):
            yield f"{'' if factor > 1 else '1 / '}the {words}"
