"""Which catalogued fault the wrong numbers are those of."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.faults import applicable
from conformance.oracle.recurrence import Recurrence, Trajectory
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence

#: Windows. Faults show early; following them through hundreds of epochs would only cost time.
HORIZON = 16
_MOST = 3


def diagnosis(reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence]) -> str | None:
    """One sentence that names the faults, all of them where several make the same numbers; None if no fault makes them.

    The rank that differs first is compared. A trainer with two faults often shows one before the other: then it is the
    faults that explain the longest beginning, if that goes beyond the first difference.
    """
    rank = ranks[difference.rank]
    windows = min(len(rank.steps) + len(right.skips), HORIZON)
    explained: dict[tuple[bool, int], list[str]] = {}
    for fault in applicable(reading.problem):
        whole, steps = _explains(reading.recurrence(right.history, fault), rank, windows)
        if steps > difference.step:
            explained.setdefault((whole, steps), []).append(fault.text)
    if not explained:
        return None
    (whole, steps), texts = max(explained.items())
    beginning = "" if whole else f"up to step {steps - 1} "
    return f"{beginning}the numbers are those of a trainer that {', or '.join(texts[:_MOST])}"


def _explains(wrong: Recurrence, rank: RankEvidence, windows: int) -> tuple[bool, int]:
    """Whether ``wrong`` gives the numbers of ``rank`` in all these windows, and in how many first steps it does."""
    steps = 0
    try:
        for step in wrong.steps(windows):
            if steps == len(rank.steps):
                return False, steps
            seen = rank.steps[steps]
            if outside(step.gradient, seen.gradients) is not None or outside(step.weights, seen.weights) is not None:
                return False, steps
            steps += 1
    except Unbounded:
        return False, steps
    return True, steps
