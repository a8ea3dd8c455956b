"""Finds the known faults that reproduce the trainer's wrong numbers."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.deviation import Deviation, pairs
from conformance.oracle.faults import applicable
from conformance.oracle.power import separation
from conformance.oracle.recurrence import Recurrence, Trajectory
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence

#: Windows to compare. Faults show early; comparing hundreds of epochs would only cost time.
HORIZON = 16
_MOST = 3


def diagnosis(reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence]) -> str | None:
    """A sentence that names every known fault that gives exactly these numbers; None if there is none.

    Compares the rank that differs first, with single faults, then with pairs of them. If no pair gives all its numbers
    either, the sentence names the faults that explain the longest run of first steps, if it includes the first
    difference: a trainer with several faults often shows one before the others.
    """
    rank = ranks[difference.rank]
    windows = min(len(rank.steps) + len(right.skips), HORIZON)

    def explains(*faults: Deviation) -> tuple[bool, int]:
        """Whether the faults reproduce all windows, and how many steps from the first one they reproduce."""
        return _explains(reading.recurrence(right.history, *faults), right, difference.step, rank, windows)

    known = applicable(reading.problem)
    explained: dict[tuple[bool, int], list[str]] = {}
    for fault in known:
        explained.setdefault(explains(fault), []).append(fault.text)
    if not any(whole for whole, _ in explained):
        for one, two in pairs(known):
            whole, steps = explains(one, two)
            if whole:
                explained.setdefault((whole, steps), []).append(f"{one.text}, and {two.text}")
    (whole, steps), texts = max(explained.items())
    if steps <= difference.step:
        return None
    beginning = "" if whole else f"up to step {steps - 1} "
    return f"{beginning}the numbers are those of a trainer that {', or '.join(texts[:_MOST])}"


def _explains(
    wrong: Recurrence, right: Trajectory, first_difference: int, rank: RankEvidence, windows: int
) -> tuple[bool, int]:
    steps = 0
    try:
        for step in wrong.steps(windows):
            if steps == len(rank.steps):
                return False, steps
            seen = rank.steps[steps]
            if outside(step.gradient, seen.gradients) is not None or outside(step.weights, seen.weights) is not None:
                return False, steps
            # A bound that also contains the right answer explains nothing.
            if steps == first_difference and separation(right.steps[steps], step) <= 1:
                return False, steps
            steps += 1
    except Unbounded:
        return False, steps
    return True, steps
