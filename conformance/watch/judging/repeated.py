"""Whether what is to be done once in a window is done again after each micro-batch, by the factors that a step has."""

from __future__ import annotations

from itertools import pairwise
from math import isclose
from typing import TypeAlias

from conformance.watch.judging.case import Case
from conformance.watch.judging.targets import kinds

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
