"""Determines the factor of each rank and backward pass in a step by least squares."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from conformance.watch.judging.agreement import use_the_same
from conformance.watch.judging.equations import AMPLE, Case
from conformance.watch.judging.targets import weigh_alike
from conformance.watch.judging.windows import Pass, Sketch

Column: TypeAlias = tuple[int, int, bool]
"""A rank, the position of a backward pass in its window, and whether the gradient is an old one."""

_MOST_COLUMNS = 200
_MORE = 2
"""Equations beyond the number of unknowns."""

_ZERO = 1e-3
_NEAR = 1e-3
_SERIES = 3
"""Fewer factors always form a geometric series."""


@dataclass
class System:
    """The used gradients as a sum of computed gradients, each with an unknown factor. bounds: of the rounding errors.
    independent: the number of independent equations."""

    case: Case
    columns: list[Column]
    matrix: Sketch
    used: Sketch
    bounds: Sketch
    independent: int

    @property
    def is_enough(self) -> bool:
        """Whether there are more equations than unknowns: only then can they prove a solution wrong."""
        return len(self.columns) + _MORE <= self.independent

    @property
    def is_ample(self) -> bool:
        return len(self.columns) + AMPLE <= self.independent

    def after(self, other: System) -> System:
        """Both systems as one, if they have the same unknowns."""
        if self.columns != other.columns:
            return self
        matrix = np.concatenate((other.matrix, self.matrix))
        used, bounds = np.concatenate((other.used, self.used)), np.concatenate((other.bounds, self.bounds))
        self.case.since, self.case.steps = other.case.since, self.case.steps + other.case.steps
        return System(self.case, self.columns, matrix, used, bounds, other.independent + self.independent)

    def solved(self) -> Shares | str:
        """The factor of each column, or the code of a fact if they cannot be determined."""
        every = np.ones(len(self.columns), bool)
        solution, rank, is_off = self._solution(every)
        if rank < len(self.columns) or is_off:
            return "changed.alike" if rank < len(self.columns) else "changed"
        small = np.abs(solution) < _ZERO * np.abs(solution).max()
        # A small factor is zero only if the rest explains the step without it: a script may scale gradients down.
        if small.any() and not self._solution(~small)[2]:
            solution = np.where(small, 0.0, solution)
        return Shares(self.case, dict(zip(self.columns, solution.tolist(), strict=True)))

    def _solution(self, columns: npt.NDArray[np.bool_]) -> tuple[Sketch, int, bool]:
        """The factors of only these columns, the number of independent ones, and whether they miss the bounds."""
        matrix, used = self.matrix[:, columns] / self.bounds[:, None], self.used / self.bounds
        solution, _, rank, _ = np.linalg.lstsq(matrix, used, rcond=1e-9)
        return solution.astype(np.float64), int(rank), bool(np.max(np.abs(matrix @ solution - used)) > 1)


def system_of(case: Case) -> System | None:
    """The system of a step; None without unknowns, or with too many."""
    order = {
        window.rank: {number: place for place, number in enumerate(sorted(window.backwards))}
        for window in case.together.here
    }
    terms = [
        (place, (rank, -1 if is_old else order[rank].get(one.backward, -1), is_old), case.sketch(number, [one]))
        for place, number in enumerate(case.parameters)
        for is_old, found in ((False, case.by_rank(number)), (True, case.old(number)))
        for rank, one in found
    ]
    columns = sorted({column for _, column, _ in terms})
    if not columns or len(columns) > _MOST_COLUMNS:
        return None
    at = {column: number for number, column in enumerate(columns)}
    equations = [*case.equations(case.with_old)]
    matrix = np.zeros((len(equations), len(columns)))
    for place, column, sketch in terms:
        matrix[2 * place : 2 * place + 2, at[column]] += sketch[:2]
    used = np.array([one.used for one in equations])
    # Rounding of computed gradients counts times their factor, which is about this.
    typical = np.abs(used).sum() / max(np.abs(matrix).sum(), 1e-300) * len(columns)
    bounds = np.array([max(one.slack + typical * one.spread, 1e-300) for one in equations])
    # Without clipping, steps have the same factors.
    return System(case, columns, matrix, used / case.clipped, bounds / case.clipped, case.independent)


class Shares:
    """The factors with which a step used each gradient, by rank and place of the backward pass, new or old.

    numbers: the places. dropped: places that no rank uses. alone: places that only this rank uses. lost: the number of
    unused gradients. without: ranks without any used gradient."""

    def __init__(self, case: Case, of: dict[Column, float]) -> None:
        self.case, self.of = case, of
        self.ranks = sorted({rank for rank, _, _ in of})
        self.numbers = sorted({place for _, place, _ in of})
        self.new = [[of.get((rank, place, False), 0.0) for rank in self.ranks] for place in self.numbers]
        used = {
            place: [rank for rank, factor in zip(self.ranks, factors, strict=True) if factor]
            for place, factors in zip(self.numbers, self.new, strict=True)
        }
        self.dropped = [place for place in self.numbers if not used[place]]
        self.alone = [place for place in self.numbers if used[place] == [case.window.rank] and len(self.ranks) > 1]
        self.lost = len(self.ranks) * len(self.numbers) - sum(map(len, used.values()))
        self.all, self.rank, self.scale = len(of), case.window.rank, case.scale
        self.without = [rank for rank in self.ranks if not any(rank in of_place for of_place in used.values())]

    @property
    def table(self) -> str:
        """The factors relative to the largest, by rank, in order of the backward passes."""
        right = max(self.of.values(), key=abs)
        ranks: dict[int, list[str]] = {}
        for (rank, _, is_old), factor in sorted(self.of.items()):
            ranks.setdefault(rank, []).append(f"{factor / right:.3g}{' (earlier)' if is_old else ''}")
        return "; ".join(f"rank {rank}: {', '.join(by_pass)}" for rank, by_pass in ranks.items())

    @property
    def times(self) -> float:
        """The ratio of the largest factor to the smallest."""
        sizes = [abs(factor) for factor in self.of.values() if factor]
        return max(sizes) / min(sizes)

    @property
    def places(self) -> list[int]:
        """The places of dropped passes, or of those that only this rank uses, from 1."""
        return [place + 1 for place in self.dropped or self.alone]

    def passes_at(self, places: Collection[int]) -> frozenset[Pass]:
        """The backward passes of this rank at these places."""
        order = sorted(self.case.window.backwards)
        return frozenset((self.rank, order[place]) for place in places if 0 <= place < len(order))

    @property
    def old(self) -> list[float]:
        return [factor for (_, _, is_old), factor in self.of.items() if is_old and factor]

    @property
    def are_old_alike(self) -> bool:
        """Whether old gradients have the factor of new ones. If not, a script may shrink them on purpose."""
        new = [factor for (_, _, is_old), factor in self.of.items() if not is_old]
        return not self.case.is_changed and any(isclose(one, other, rel_tol=0.01) for one in self.old for other in new)

    @property
    def are_ranks_lost(self) -> bool:
        """Whether all gradients of some ranks are unused, and no others."""
        return 0 < self.lost == len(self.without) * len(self.numbers)

    @property
    def are_ranks_left_out(self) -> bool:
        """Whether some ranks are unused and several are left."""
        return self.are_ranks_lost and self.lost < len(self.of) - len(self.numbers)

    @property
    def are_common(self) -> bool:
        return use_the_same(self.case.together.here)

    @property
    def are_targets_alike(self) -> bool:
        return weigh_alike(self.case.together, self.of)

    @property
    def is_dropped_by_mistake(self) -> bool:
        """Whether the unused passes are like the others, but came first. Scripts that only inspect a gradient restore
        `.grad` afterwards, so there the unused passes come later."""
        window = self.case.window
        passes = window.passes
        if max(self.dropped) >= len(passes):
            return False
        lost = [passes[place] for place in self.dropped]
        kept = [one for place, one in enumerate(passes) if place not in self.dropped]
        alike = {(one.calls, window.version(one)) for one in lost} <= {(one.calls, window.version(one)) for one in kept}
        return alike and max(one.backward for one in lost) < min(one.backward for one in kept)

    # Operations that belong once in a window, but were applied to the accumulated gradients after each micro-batch.
    # A script may weight micro-batches on purpose, but hardly by powers of the number of ranks or micro-batches where
    # the last factor is that of one application. In a moving average, factors also fall by a half or a third, but the
    # newest has factor 1, or all factors add up to 1.

    @property
    def is_divided_again(self) -> bool:
        number, ranks = len(self.new), self.case.together.ranks
        return self._is_series(number, (1 / number, 1 / number / ranks, ranks / number))

    @property
    def is_summed_again(self) -> bool:
        number, ranks = len(self.new), self.case.together.ranks
        return ranks > 1 and self._is_series(1 / ranks, (1.0, 1 / ranks, 1 / number, 1 / number / ranks))

    def _is_series(self, ratio: float, last: Collection[float]) -> bool:
        """Whether each factor is `ratio` times the one before, and the last one is one of `last`."""
        if len(self.new) < _SERIES or not all(factor for of_place in self.new for factor in of_place):
            return False
        pairs = [pair for before, after in pairwise(self.new) for pair in zip(before, after, strict=True)]
        scale = self.scale / (self.case.step.grad_scale or 1.0)
        return all(isclose(later, ratio * earlier, rel_tol=_NEAR) for earlier, later in pairs) and any(
            isclose(self.new[-1][0] * scale, one, rel_tol=_NEAR) for one in last
        )

    @property
    def are_added_again(self) -> bool:
        """Whether the running total was added up, K, K - 1 ... 1 times, or was summed over the ranks each time.

        Only for passes of one line with equal numbers of targets, which must count equally. Intended weights would be
        in the loss, and so in the computed gradients."""
        passes = self.case.window.passes
        counts = {one.targets or one.summed for one in passes}
        if len(self.case.window.kinds) > 1 or len(counts) > 1 or counts & {0, None} or len(passes) < 2:
            return False
        number, ranks = len(passes), self.case.together.ranks
        patterns = [[number - place for place in range(number)]]
        patterns += [[ranks ** (number - 1 - place) for place in range(number)]] if ranks > 1 else []
        smallest = min(self.of.values())
        return smallest > 0 and any(
            all(isclose(factor, smallest * pattern[place], rel_tol=0.01) for (_, place, _), factor in self.of.items())
            for pattern in patterns
        )
