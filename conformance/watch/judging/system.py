"""Least squares over ranks and backward passes: with which factor a step used each of them, and whether something that
belongs once into a window was done again after each micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from conformance.watch.judging.case import AMPLE, Case
from conformance.watch.judging.findings import Said, said
from conformance.watch.judging.targets import kinds
from conformance.watch.judging.windows import Sketch

Column: TypeAlias = tuple[int, int, bool]
"""A rank, the position of a backward pass in its window, and whether an earlier step left it."""

_SERIES = 3
"""Factors of fewer backward passes are a geometric series whatever they are."""

_NEAR = 1e-3


def done_again(case: Case, factors: list[list[float]]) -> str | None:
    """The code of what belongs once into a window and was done again after each micro-batch, to all that was
    accumulated so far; None if nothing was. factors: of the ranks, in each backward pass.

    A script may weigh micro-batches as it likes. It needs no weights that are powers of just the number of ranks or of
    micro-batches, the first of which counts the most of the former and the least of the latter, while the last one has
    just what is done to it once. With gradients that fade to a third or a half, as an average of the last ones has
    them, the newest counts in full, or all weights together are one.
    """
    if len(factors) < _SERIES or not all(factor for of_place in factors for factor in of_place):
        return None
    ratios = [
        later / earlier for before, after in pairwise(factors) for earlier, later in zip(before, after, strict=True)
    ]

    def are_all(ratio: float) -> bool:
        return all(isclose(one, ratio, rel_tol=_NEAR) for one in ratios)

    ranks = case.together.ranks
    last = factors[-1][0] * _scale(case)

    def is_done_once(factor: float) -> bool:
        """Whether the last micro-batch has this factor, or that and the mean over the ranks."""
        return isclose(last, factor, rel_tol=_NEAR) or isclose(last, factor / ranks, rel_tol=_NEAR)

    if are_all(len(factors)) and (is_done_once(1 / len(factors)) or is_done_once(ranks / len(factors))):
        return "divided-again"
    if ranks > 1 and are_all(1 / ranks) and (is_done_once(1.0) or is_done_once(1 / len(factors))):
        return "summed-again"
    return None


def are_added_again(case: Case, of: dict[Column, float]) -> bool:
    """Whether the running total was added up, K, K - 1 ... 1 times, or was summed over the ranks each time.

    Passes of one line that are known to have as many samples each are of one loss, and count alike. A script that
    weighs them otherwise on purpose does so in the loss, which belongs to what is computed."""
    passes = list(case.window.backwards.values())
    counts = {one.targets or one.summed for one in passes}
    if len(kinds([case.window])) > 1 or len(counts) > 1 or counts & {0, None} or len(passes) < 2:
        return False
    last = len(passes) - 1
    ranks = case.together.ranks
    patterns = [[last + 1 - place for place in range(last + 1)]]
    patterns += [[ranks ** (last - place) for place in range(last + 1)]] if ranks > 1 else []
    smallest = min(of.values())
    return smallest > 0 and any(
        all(isclose(factor, smallest * pattern[place], rel_tol=0.01) for (_, place, _), factor in of.items())
        for pattern in patterns
    )


def _scale(case: Case) -> float:
    """What the gradients of a step are multiplied with that its losses carry, and the optimizer does not divide by."""
    return max(case.window.scales, default=1.0) / (case.step.grad_scale or 1.0)


_MOST_COLUMNS = 200
_MORE = 2
"""Equations beyond the number of unknowns."""

_ZERO = 1e-3


@dataclass
class System:
    """What a step used as a sum of what was computed, each with an unknown factor. columns: rank, position of the
    backward pass in its window, and whether it was left by an earlier step. bounds: how far off rounding may be.
    independent: how many equations say something of their own."""

    case: Case
    columns: list[Column]
    matrix: Sketch
    used: Sketch
    bounds: Sketch

    independent: int

    @property
    def is_enough(self) -> bool:
        """Whether there are more equations than unknowns, so that a solution can be wrong."""
        return len(self.columns) + _MORE <= self.independent

    @property
    def is_ample(self) -> bool:
        return len(self.columns) + AMPLE <= self.independent

    def after(self, other: System) -> System:
        """Both at once, if they have the same unknowns."""
        if self.columns != other.columns:
            return self
        return System(
            self.case,
            self.columns,
            np.concatenate((other.matrix, self.matrix)),
            np.concatenate((other.used, self.used)),
            np.concatenate((other.bounds, self.bounds)),
            other.independent + self.independent,
        )


def system_of(case: Case) -> System | None:
    """None if there is nothing to solve for."""
    order: dict[int, dict[int, int]] = {
        window.rank: {number: place for place, number in enumerate(sorted(window.backwards))}
        for window in case.together.here
    }
    terms = [
        (
            place,
            (rank, -1 if is_old else order[rank].get(one.backward, -1), is_old),
            one.sketch[min(case.shard(number), len(one.sketch) - 1)],
        )
        for place, number in enumerate(case.parameters)
        for is_old, found in ((False, case.by_rank(number)), (True, case.old(number)))
        for rank, one in found
    ]
    columns = sorted({column for _, column, _ in terms})
    if not columns or len(columns) > _MOST_COLUMNS:
        return None
    at = {column: number for number, column in enumerate(columns)}
    equations = case.equations(case.with_old)
    matrix = np.zeros((len(equations), len(columns)))
    for place, column, sketch in terms:
        matrix[2 * place : 2 * place + 2, at[column]] += sketch[:2]
    used = np.array([one.used for one in equations])
    # Rounding of what was computed counts with the factor that it is used with, which is about this.
    typical = np.abs(used).sum() / max(np.abs(matrix).sum(), 1e-300) * len(columns)
    bounds = np.array([max(one.slack + typical * one.spread, 1e-300) for one in equations])
    # Steps that are clipped differently have the same factors otherwise.
    clipped = case.clipped
    return System(case, columns, matrix, used / clipped, bounds / clipped, case.independent)


def factors_of(system: System) -> dict[Column, float] | Said:
    """The factor of each rank and backward pass, or the fact that they are not known."""
    weighed = system.matrix / system.bounds[:, None]
    solution, _, rank, _ = np.linalg.lstsq(weighed, system.used / system.bounds, rcond=1e-9)
    if rank < len(system.columns):
        return said("changed.alike")
    if np.max(np.abs(system.matrix @ solution - system.used) / system.bounds) > 1:
        return said("changed")
    small = np.abs(solution) < _ZERO * np.abs(solution).max()
    # What a script has made small by hand is no zero: without it the rest does not explain the step.
    kept = np.where(small, 0.0, solution) if small.any() and _explains(system, ~small) else solution
    return dict(zip(system.columns, kept.tolist(), strict=True))


def _explains(system: System, columns: npt.NDArray[np.bool_]) -> bool:
    """Whether the step is a sum of these alone."""
    matrix = system.matrix[:, columns]
    solution = np.linalg.lstsq(matrix / system.bounds[:, None], system.used / system.bounds, rcond=1e-9)[0]
    return bool(np.max(np.abs(matrix @ solution - system.used) / system.bounds) <= 1)
