"""The right answers to a case, in all readings that are accepted, along what its ranks' loss scaler did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from conformance.oracle.accepted_readings import SCALARS_IN_TENSORS, Reading, must_step, readings
from conformance.oracle.recurrence import ScalerHistory, Trajectory
from conformance.verdict.comparison import matches
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.verdict.last_window import as_dealt, padded
from conformance.workloads.problem import Problem


def accepted_by(
    problem: Problem, ranks: Sequence[RankEvidence], *, carries: bool = False
) -> tuple[Sequence[Reading], ScalerHistory | None]:
    """The accepted readings, and the skips and loss scales of rank 0, along which the right answers are."""
    problem = as_dealt(problem, ranks)
    history = _history(problem, ranks[0])
    early = all(rank.averaged_early for rank in ranks)
    # Averaging early has a wider bound, which only trainers that do it get.
    accepted = readings(problem, padded(problem, ranks), history.skips if history else frozenset(), carries=carries)
    # So has a step whose scalars are tensors.
    if any(rank.scalars_in_tensors for rank in ranks):
        accepted = tuple(replace(one, deviations=(*one.deviations, SCALARS_IN_TENSORS)) for one in accepted)
    return [reading for reading in accepted if early or not reading.averages_early], history


def _history(problem: Problem, rank: RankEvidence) -> ScalerHistory | None:
    """What the loss scaler of ``rank`` did. A last window that nothing ended was dropped if it may be, not skipped."""
    attempts = rank.attempts
    if not problem.precision.scaled or not attempts:
        return None
    stepped = {attempt.window for attempt in attempts if attempt.stepped}
    scales = {attempt.window: scale for attempt in attempts if (scale := exactly(attempt.scale))}
    skips = frozenset(range(problem.workload.steps)) - stepped
    attempted = {attempt.window for attempt in attempts}
    dropped = skips - attempted - must_step(problem)
    if len(scales) < len(attempts):
        return ScalerHistory(skips - dropped)
    # A window that was left out has the scale of the next one.
    known = (min((window for window in scales if window >= at), default=None) for at in range(max(scales) + 1))
    return ScalerHistory(skips - dropped, tuple(scales[window] for window in known if window is not None))


# Trainers of other backends have the same problems, a hundred cases later; each takes 0.1 MiB.
@lru_cache(maxsize=128)
def trajectory_of(reading: Reading, history: ScalerHistory | None) -> Trajectory:
    return reading.recurrence(history).run()


def fit(ranks: Sequence[RankEvidence], readings: Iterable[Reading], history: ScalerHistory | None) -> bool:
    """Whether the ranks' numbers are those of one of these readings."""
    return any(matches(ranks, trajectory_of(reading, history).steps) for reading in readings)


def without_gradients(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    return tuple(
        replace(rank, attempts=tuple(replace(attempt, gradients=None) for attempt in rank.attempts)) for rank in ranks
    )
