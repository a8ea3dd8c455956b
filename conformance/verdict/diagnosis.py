"""Which catalogued fault the wrong numbers are those of."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.oracle.accepted_readings import Reading
from conformance.oracle.affine import Unbounded
from conformance.oracle.deviation import pairs
from conformance.oracle.faults import Fault, applicable
from conformance.oracle.power import separation
from conformance.oracle.recurrence import Recurrence, Trajectory
from conformance.verdict.comparison import Difference, outside
from conformance.verdict.evidence import RankEvidence

#: Windows. Faults show early; following them through hundreds of epochs would only cost time.
HORIZON = 16
_MOST = 3


def diagnosis(reading: Reading, right: Trajectory, difference: Difference, ranks: Sequence[RankEvidence]) -> str | None:
    """One sentence that names the faults, all of them where several make the same numbers; None if no fault makes them.

    The rank that differs first is compared. Two faults at once are named where no single one makes all its numbers. If
    those do not either, it is the faults that explain the longest beginning, if that goes beyond the first difference:
    a trainer with several faults often shows one before the others.
    """
    rank = ranks[difference.rank]
    windows = min(len(rank.steps) + len(right.skips), HORIZON)

    def explains(*faults: Fault) -> tuple[bool, int]:
        """Whether they make the numbers of all these windows, and of how many first steps."""
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
            # A bound so wide that the right answer lies in it too explains nothing.
            if steps == first_difference:
                gap = separation(right.steps[steps], step)
                if gap is not None and gap <= 1:
                    return False, steps
            steps += 1
    except Unbounded:
        return False, steps
    return True, steps
