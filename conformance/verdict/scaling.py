"""Judges a loss scaler by its recorded skips, its updates, and its scale on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import frexp, isfinite, isnan
from typing import NamedTuple

from conformance.laws.correct_gradient import at_outputs
from conformance.laws.subjects import Rank
from conformance.oracle.overflow import Scaler
from conformance.oracle.recurrence import Trajectory
from conformance.oracle.rounding import odd_part
from conformance.trace import events as trace
from conformance.trace.events import BackwardBegin
from conformance.verdict.evidence import Attempt, RankEvidence, Update, at, place
from conformance.verdict.judgement import Told
from conformance.workloads.precision import FP32
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Clip, LossScale


class SteppedOverflow(NamedTuple):
    """A step of a window that overflows. told: in words. where: the line that hides it."""

    window: int
    told: Told
    where: str | None = None


def stepped_overflow(trajectory: Trajectory, ranks: Sequence[RankEvidence]) -> SteppedOverflow | None:
    """The first step with gradients that overflowed, or whose clip hid that they did, in a window that may overflow."""
    overflows = dict(enumerate(trajectory.overflows))
    for rank in ranks:
        for step in rank.steps:
            clips = [one for one in rank.events.of(trace.Clip) if one.window == step.window]
            before = [one.before for one in rank.events.of(trace.GradientChange) if one.window == step.window]
            found = _not_finite(step.gradients)
            earlier = [_not_finite(one) for one in (*(clip.gradients for clip in clips), *before)]
            hiding = next((clip for clip in clips if _not_finite(clip.gradients)), None)
            if found and overflows.get(step.window, "impossible") != "impossible":
                is_nan = all(map(isnan, chain(found, *earlier)))
                why = ": gradients are NaN and not infinite, so a check for infinity misses them" * is_nan
                advice = "skip the step if a gradient is not finite" + ": `torch.isfinite` also finds NaN" * is_nan
                return SteppedOverflow(step.window, Told(_stepped(step.window) + why, advice))
            # Where an overflow is uncertain, the clipped gradients may be correct.
            if not found and hiding is not None and overflows.get(step.window) == "certain":
                text = f"{_stepped(step.window)}: the clip made the gradients finite"
                return SteppedOverflow(step.window, Told(text, "look for an overflow before the clip"), place(hiding))
    return None


def _not_finite(gradients: Sequence[trace.Number | None] | None) -> list[float]:
    return [value for one in gradients or () if one is not None and not isfinite(value := float(one))]


def _stepped(window: int) -> str:
    return f"window {window} overflows, but the optimizer stepped"


def scaler_faults(
    trajectory: Trajectory, ranks: Sequence[RankEvidence], clip: Clip | None, known: int | None, *, fit: bool = False
) -> list[str]:
    """One line for each fault of the scaler; empty if there are none.

    ``trajectory`` follows the observed skips, so its ``overflows`` say which windows can overflow at their scales.
    ``fit``: the ranks' numbers are correct. Then an unseen scale may differ from the task's. ``known``: a window that
    is known to step on an overflow.
    """
    is_open = fit and not is_seen(ranks)
    # Clipping by value makes infinity finite, after the scaler has seen it; the scaler still skips.
    clamped = clip is not None and clip.kind == "value"
    faults = []
    skipped = "did not change the weights" if any(rank.steps_by_hand for rank in ranks) else "was skipped"
    for window, overflow in enumerate(trajectory.overflows):
        is_first = trajectory.skips.issuperset(range(window))
        if window in trajectory.skips and overflow == "impossible" and not (is_open and is_first):
            left = _left_over(ranks, window) if window - 1 in trajectory.skips else None
            faults.append(
                f"{f'{left}: ' if left else ''}window {window} {skipped}, although nothing can overflow at its loss "
                "scale"
            )
        steps = window not in trajectory.skips and window != known
        if steps and overflow == "certain" and (clamped or not is_open):
            faults.append(_stepped(window))
    for rank in ranks:
        # The server keeps the loss scale for its workers.
        if not rank.steps_by_hand:
            faults += (f"rank {rank.number} {fault}" for fault in _of_rank(rank, clamped))
    scales = defaultdict[int, set[float]](set)
    for attempt in chain.from_iterable(rank.attempts for rank in ranks):
        # A rank whose weights another one changes has no scale.
        if attempt.scale is not None:
            scales[attempt.window].add(attempt.scale)
    if any(len(different) > 1 for different in scales.values()):
        faults.append("the ranks' loss scales differ")
    return faults


def _left_over(ranks: Sequence[RankEvidence], window: int) -> str | None:
    """A phrase if a window, whose own gradients are finite, used those of the skipped window before it; else None."""
    kept = f"the gradients of window {window - 1}, which was skipped, were not cleared"
    for rank in ranks:
        backwards = (one for one in rank.events.of(BackwardBegin) if one.window == window)
        if (first := next(backwards, None)) is not None and first.gradients == "some":
            return f"{kept}{at(place(first))}"
        # Buffers of the trainer's own show what they kept when it steps.
        infinite = [
            [value is not None and not isfinite(value) for value in one.gradients or ()]
            for one in rank.attempts
            if one.window in (window - 1, window)
        ]
        if len(infinite) == 2 and infinite[0] == infinite[1] and any(infinite[0]):
            return kept
    return None


def keeps_overflow(trajectory: Trajectory, ranks: Sequence[RankEvidence]) -> bool:
    """Whether a window was skipped for gradients that the skipped one before it left."""
    return any(
        overflow == "impossible" and {window - 1, window} <= trajectory.skips and _left_over(ranks, window) is not None
        for window, overflow in enumerate(trajectory.overflows)
    )


def may_begin_higher(trajectory: Trajectory, ranks: Sequence[RankEvidence]) -> bool:
    """Whether the first windows are skipped without need at the task's loss scale, and the trainer's own is unseen: it
    may have started with a higher scale."""
    return not is_seen(ranks) and 0 in trajectory.skips and trajectory.overflows[0] == "impossible"


def is_seen(ranks: Sequence[RankEvidence]) -> bool:
    """Whether the loss scale of any window is known."""
    return any(attempt.scale is not None for rank in ranks for attempt in rank.attempts)


def shows_uneven_scale(rank: Rank, problem: Problem) -> bool:
    """Whether the first backward multiplied residuals by a factor that is not a power of two, divided by samples."""
    first = at_outputs(rank)[:1]
    if not problem.precision.scaled or not first:
        return False
    terms = [one.weighted() if problem.workload.loss == "weighted" else one for one in first[0].terms]
    residuals, odd = sum(abs(one.residual) for one in terms), odd_part(len(problem.windows[0].batch))
    if not residuals:
        return False
    factor = sum(abs(one.gradient) for one in terms) / residuals
    parts = (frexp(factor * part)[0] for part in range(1, odd + 1) if odd % part == 0)
    # The tolerance is that of fp16; its roundings mostly cancel out in the sums.
    return all(2 * part - 1 > 2**-9 and 1 - part > 2**-9 for part in parts)


def _of_rank(rank: RankEvidence, clamped: bool) -> Iterator[str]:
    scaled = [attempt for attempt in rank.attempts if attempt.scale is not None]
    for attempt in scaled:
        if not attempt.stepped and attempt.gradients_finite and not clamped:
            yield f"skipped window {attempt.window} with finite gradients"
    # A trainer that steps without the scaler changes the scale by its own rule.
    if not scaled or any(attempt.scale is None for attempt in rank.steps):
        return
    windows = {attempt.window for attempt in scaled}
    updates = rank.updates
    if len(updates) == max(windows) + 1:
        # Drop updates by hand in windows that were left out.
        updates = tuple(updates[window] for window in sorted(windows))
    # So does a trainer that sets the new scale, which must be lower after an overflow.
    has_own_rule = any(one.given for one in updates)
    if len(updates) != len(scaled):
        if not has_own_rule:
            yield f"updated the loss scale {len(updates)} times in {len(scaled)} windows"
        return
    beyond = next((update.after for update in updates if not isfinite(update.before + update.after)), None)
    if beyond is not None:
        yield f"has a loss scale of {beyond:g}"
        return
    scaler, last = Scaler(_rule(updates[0])), None
    for attempt, update in zip(scaled, updates, strict=True):
        if has_own_rule and (attempt.stepped or update.after < update.before):
            continue
        if attempt.window - 1 not in windows or has_own_rule:
            scaler.scale = Fraction(update.before)
        elif last is not None and (last.after, last.scaler) != (update.before, update.scaler):
            # The scale was set in between, or a new scaler continues from the old scale.
            return
        last = update
        if _departs(scaler, attempt, update):
            what = "its step" if attempt.stepped else "the overflow"
            yield (
                f"has a loss scale of {update.after:g} after {what} in window {attempt.window} instead of "
                f"{float(scaler.scale):g} by GradScaler's rule"
            )
            return


def _rule(first: Update) -> LossScale:
    """GradScaler's rule, from the first update of a loss scale."""
    factors = Fraction(first.growth_factor), Fraction(first.backoff_factor)
    return LossScale(Fraction(first.before), first.growth_interval, *factors)


def _departs(scaler: Scaler, attempt: Attempt, update: Update) -> bool:
    """Whether the new scale differs from that of ``scaler``, which is updated alongside."""
    scaler.update(overflowed=not attempt.stepped)
    # GradScaler keeps its scale in fp32, which rounds unless factors are powers of two.
    if abs(Fraction(update.after) - scaler.scale) > scaler.scale * FP32.unit_roundoff:
        return True
    scaler.scale = Fraction(update.after)
    return False


def other_scale(ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if a loss scale, or its count of windows without an overflow, changed at the resume; None if not, or
    if it follows another rule than GradScaler's."""
    for rank in ranks:
        before, after = rank.lives or (None, None)
        if not before or not after or not before.updates or not after.updates:
            continue
        if any(update.given for update in rank.updates):
            continue
        last, next_ = before.updates[-1], after.updates[0]
        if next_.before != last.after:
            when = ", after `scaler.update()`" if next_.before == last.before else ""
            return Told(
                f"rank {rank.number} was stopped at a loss scale of {last.after:g}, and resumed at {next_.before:g}",
                f"save{when} and load `scaler.state_dict()`",
            )
        rule = _rule(before.updates[0])
        scaler = Scaler(rule)
        if _first_other(scaler, before) is not None:
            continue
        as_stopped = replace(rule, init_scale=scaler.scale), scaler.clean
        if (window := _first_other(Scaler(*as_stopped), after)) is not None:
            what, advice = _other_count(*as_stopped, after)
            return Told(
                f"the loss scale of rank {rank.number} is wrong after window {window}: after the resume, the count of "
                f"windows since its last change {what}",
                advice,
            )
    return None


def _other_count(rule: LossScale, clean: int, after: RankEvidence) -> Told:
    """A phrase on the wrong count of a loss scale after a resume, which should be ``clean``, and the fix."""
    restarts, is_behind = (_first_other(Scaler(rule, count), after) is None for count in (0, clean - 1))
    if restarts and is_behind:
        return Told("restarts, or is one behind", "save `scaler.state_dict()` after `scaler.update()`, and load it")
    if is_behind:
        return Told("is one behind", "save `scaler.state_dict()` after `scaler.update()`")
    if restarts:
        return Told("restarts", _WITH_COUNT)
    return Told("is wrong", _WITH_COUNT)


_WITH_COUNT = "save and load `scaler.state_dict()`, which includes the count"


def _first_other(scaler: Scaler, life: RankEvidence) -> int | None:
    """The first window of a life after which its loss scale differs from ``scaler``'s, which is updated alongside."""
    scaled = [attempt for attempt in life.attempts if attempt.scale is not None]
    if len(scaled) != len(life.updates):
        return None
    pairs = zip(scaled, life.updates, strict=True)
    return next((attempt.window for attempt, update in pairs if _departs(scaler, attempt, update)), None)
