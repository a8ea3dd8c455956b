"""Judges a loss scaler by its recorded skips, its updates, and its scale on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import isfinite

from conformance.oracle.overflow import Scaler
from conformance.oracle.recurrence import Trajectory
from conformance.verdict.evidence import RankEvidence
from conformance.workloads.workload import Clip, LossScale


def stepped_overflow(trajectory: Trajectory, ranks: Sequence[RankEvidence]) -> int | None:
    """The first window that overflows and was stepped, by the observed skips that ``trajectory`` follows. What a scale
    that is not known leaves open, the gradients show."""
    seen = {
        attempt.window
        for rank in ranks
        for attempt in rank.steps
        if any(value is not None and not isfinite(value) for value in attempt.gradients or ())
    }
    for window, overflow in enumerate(trajectory.overflows):
        if window not in trajectory.skips and (overflow == "certain" or (overflow == "possible" and window in seen)):
            return window
    return None


def scaler_faults(trajectory: Trajectory, ranks: Sequence[RankEvidence], clip: Clip | None) -> list[str]:
    """What is wrong, one line each; empty if nothing is.

    ``trajectory`` follows the observed skips, so its ``overflows`` say what could overflow at each window's scale.
    """
    # Clipping by value makes infinity finite; the scaler has seen it before, and skips after.
    clamped = clip is not None and clip.kind == "value"
    faults = []
    for window, overflow in enumerate(trajectory.overflows):
        if window in trajectory.skips and overflow == "impossible":
            faults.append(f"window {window} was skipped, though nothing can overflow at its loss scale")
    for rank in ranks:
        # The server keeps the loss scale for its workers.
        if any(event["event"] in ("step", "skip") for event in rank.outcome.events):
            faults += (f"rank {rank.outcome.rank} {fault}" for fault in _of_rank(rank, clamped))
    scales = defaultdict[int, set[float]](set)
    for attempt in chain.from_iterable(rank.attempts for rank in ranks):
        # A rank whose weights another one changes has no scale.
        if attempt.scale is not None:
            scales[attempt.window].add(attempt.scale)
    if any(len(different) > 1 for different in scales.values()):
        faults.append("the ranks' loss scales differ")
    return faults


def _of_rank(rank: RankEvidence, clamped: bool) -> Iterator[str]:
    scaled = [attempt for attempt in rank.attempts if attempt.scale is not None]
    # A trainer that steps without the scaler changes the scale by a rule of its own.
    if not scaled:
        return
    for attempt in scaled:
        if not attempt.stepped and attempt.gradients_finite and not clamped:
            yield f"skipped window {attempt.window} with finite gradients"
    if len(rank.updates) != len(scaled):
        yield f"updated the loss scale {len(rank.updates)} times in {len(scaled)} windows"
        return
    beyond = next((update.after for update in rank.updates if not isfinite(update.before + update.after)), None)
    if beyond is not None:
        yield f"has a loss scale of {beyond:g}"
        return
    first = rank.updates[0]
    rule = LossScale(
        Fraction(first.before), first.growth_interval, Fraction(first.growth_factor), Fraction(first.backoff_factor)
    )
    scaler = Scaler(rule)
    for attempt, update in zip(scaled, rank.updates, strict=True):
        scaler.update(overflowed=not attempt.stepped)
        if Fraction(update.after) != scaler.scale:
            what = "its step" if attempt.stepped else "the overflow"
            yield (
                f"has a loss scale of {update.after:g} after {what} in window {attempt.window}, "
                f"where GradScaler's rule gives {float(scaler.scale):g}"
            )
            return
