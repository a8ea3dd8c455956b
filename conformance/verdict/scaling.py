"""Judging a loss scaler by what it really did: its skips, its updates, its scale on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.oracle.recurrence import Trajectory
from conformance.verdict.evidence import RankEvidence
from conformance.workloads.workload import Workload


def scaler_faults(workload: Workload, trajectory: Trajectory, ranks: Sequence[RankEvidence]) -> list[str]:
    """What is wrong, one line each; empty if nothing is.

    ``trajectory`` follows the observed skips, so its ``overflows`` say what could overflow at each window's scale.
    """
    faults = []
    for window, overflow in enumerate(trajectory.overflows):
        if window in trajectory.skips and overflow == "impossible":
            faults.append(f"window {window} was skipped, though nothing can overflow at its loss scale")
        if window not in trajectory.skips and overflow == "certain":
            faults.append(f"window {window} overflows, and the optimizer stepped all the same")
    for rank in ranks:
        name = f"rank {rank.outcome.rank}"
        seen = [attempt for attempt in rank.attempts if attempt.scale is not None]
        for attempt in seen:
            if not attempt.stepped and attempt.gradients_finite:
                faults.append(f"{name} skipped window {attempt.window} with finite gradients")
        if not seen:
            continue
        if len(rank.updates) != len(seen):
            faults.append(f"{name} updated the loss scale {len(rank.updates)} times in {len(seen)} windows")
            continue
        for attempt, (before, after) in zip(seen, rank.updates, strict=True):
            if not attempt.stepped and not after < before:
                faults.append(f"{name} kept the loss scale at {before:g} after the overflow in window {attempt.window}")
            if attempt.stepped and after < before:
                faults.append(f"{name} backed the loss scale off without an overflow in window {attempt.window}")
        own = seen[0].scale != float(workload.scale.initial)
        expected = [float(scale) for scale in trajectory.scales]
        if not own and len(expected) == len(seen) + 1 and rank.updates[-1][1] != expected[-1]:
            faults.append(
                f"{name} ends with a loss scale of {rank.updates[-1][1]:g}, GradScaler's rule gives {expected[-1]:g}"
            )
    scales = [[attempt.scale for attempt in rank.attempts] for rank in ranks]
    if any(other != scales[0] for other in scales[1:]):
        faults.append("the ranks' loss scales differ")
    return faults
