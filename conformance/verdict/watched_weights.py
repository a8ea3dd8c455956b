"""Steps that no optimizer of torch's takes, seen by the weights with which each window begins.

A functional update, an optimizer that is none of torch's, fp32 master weights that are copied back, shards of
parameters that the ranks exchange after a step, a parameter server: whatever changes the weights, the next window's
first forward uses what came of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from conformance.laws.run import Rank, Run
from conformance.oracle.recurrence import Trajectory
from conformance.results.records import Vector
from conformance.trace import events as trace
from conformance.trace.events import Finished, Forward, Report, ScalerStep, Start
from conformance.verdict.comparison import matches, same
from conformance.verdict.evidence import Attempt, RankEvidence, overlaid, values


def with_watched_weights(ranks: Sequence[RankEvidence], run: Run) -> tuple[RankEvidence, ...]:
    """The same evidence, with the weights that came of each window as its attempt's, and with attempts for ranks that
    never step an optimizer of torch's.

    Where the only rank that steps serves the others, those get its gradients and loss scales, which changed their
    weights. They see nothing of earlier steps in a window, which a right server does not make.
    """
    served = () if run.server is None else ranks[run.server].attempts
    skipped = _skipped(ranks)
    stepped = {attempt.seen_in: attempt for rank in ranks for attempt in rank.steps}
    watched = [
        _watched(rank, seen, rank.attempts or served, stepped, skipped)
        for rank, seen in zip(ranks, run.ranks, strict=True)
    ]
    return tuple(replace(rank, attempts=tuple(_completed(rank, watched))) for rank in watched)


def changed_after_training(ranks: Sequence[RankEvidence], right: Trajectory | None) -> str | None:
    """Why the weights that training ends with say nothing of its steps, where these are right; None if they do."""
    if right is None or not all(rank.attempts and rank.final_weights for rank in ranks):
        return None
    stepped = [_as_stepped(rank) for rank in ranks]
    if stepped == list(ranks) or not matches(stepped, right.steps):
        return None
    return (
        "all steps are right, but after the last one the weights become others, and it is not known what for; return "
        "from the function under `@trainer` before averaged or earlier weights are loaded, adapters are merged, or the "
        "model is cast to another type, and after what the last step made of masters is copied to the model"
    )


def _as_stepped(rank: RankEvidence) -> RankEvidence:
    """With what the optimizer's last step made of the weights, whatever training ends with."""
    *earlier, last = rank.attempts
    for step in rank.events.of(trace.Attempt)[-1:]:
        if step.window == last.seen_in and step.weights is not None:
            return replace(rank, attempts=(*earlier, replace(last, weights=values(step.weights))))
    return rank


def _skipped(ranks: Sequence[RankEvidence]) -> set[int | None]:
    """The windows that all ranks with an optimizer of torch's skipped: those without one had nothing to step."""
    attempts = [attempt for rank in ranks for attempt in rank.attempts]
    stepped = {attempt.seen_in for attempt in attempts if attempt.stepped}
    return {attempt.seen_in for attempt in attempts} - stepped


def _watched(
    rank: RankEvidence,
    seen: Rank,
    attempts: Sequence[Attempt],
    elsewhere: Mapping[int | None, Attempt],
    skipped: Set[int | None],
) -> RankEvidence:
    shown = {window.number: _shown_by(window.shown_after) for window in seen.windows}
    held = {window: weights for window, weights in shown.items() if weights is not None}
    if seen.shard is not None:
        # What a rank has gathered shows no step that came later.
        used = {window.number: _shown_by(next(iter(window.forwards), None)) for window in seen.windows}
        held = {window: weights for window, weights in held.items() if weights != used[window]}
    attempted = {attempt.seen_in for attempt in attempts}
    by_hand = (
        ()
        if any(attempt.stepped for attempt in attempts)
        else tuple(_by_hand(seen, held, skipped - attempted, elsewhere))
    )
    if by_hand:
        taken = sorted((*attempts, *by_hand), key=lambda attempt: attempt.window)
        return replace(rank, attempts=tuple(taken), changes=tuple(_within(rank)))
    if rank.attempts:
        attempts = sorted((*attempts, *_sent(seen, held, elsewhere)), key=lambda attempt: attempt.window)
    last = {attempt.seen_in: attempt for attempt in attempts}
    moved = {
        window
        for window, attempt in last.items()
        if rank.attempts and attempt.stepped and window in held and not same(held[window], attempt.weights)
    }
    exchanged = moved & _exchanged(rank) if moved else set[int | None]()
    # As where a step ends in code of the trainer's own, or ranks send one another what they have stepped.
    by_design = moved if len(moved) == len(last) > 1 else exchanged

    def after(attempt: Attempt) -> Attempt:
        if attempt is not last[attempt.seen_in] or attempt.seen_in not in held:
            return attempt
        # Ranks that average weights after their steps average the gradients of these steps, too.
        is_local = attempt.seen_in in exchanged and None not in (attempt.gradients or (None,))
        gradients = None if is_local else attempt.gradients
        return replace(attempt, weights=held[attempt.seen_in], gradients=gradients)

    return replace(
        rank,
        attempts=tuple(after(attempt) for attempt in attempts if rank.attempts or attempt.seen_in in held),
        changes=(
            *_within(rank),
            *(
                f"rank {rank.outcome.rank}, after the step of window {number}"
                + _still(seen, attempts, last[number], held[number])
                for number in sorted(moved - by_design, key=str)
            ),
        ),
    )


def _still(seen: Rank, attempts: Sequence[Attempt], attempt: Attempt, shown: Vector) -> str:
    """Says so if what is ``shown`` after a step are weights from before it, where that has moved them."""
    at = attempts.index(attempt)
    starts = [values(start.weights) for start in seen.of(Start) if start.weights]
    before = attempts[at - 1].weights if at else starts[0] if starts else (None,) * len(shown)
    moved = [(old, now) for old, new, now in zip(before, attempt.weights, shown, strict=True) if new != now]
    return ", which are still those from before it" if all(old == now for old, now in moved) else ""


def _completed(rank: RankEvidence, ranks: Sequence[RankEvidence]) -> Iterator[Attempt]:
    """The attempts, with the gradients of parameters that other ranks step for this one."""
    partial = [attempt for attempt in rank.attempts if attempt.gradients is not None and None in attempt.gradients]
    exchanged = _exchanged(rank) if partial else set()
    for attempt in rank.attempts:
        gradients = attempt.gradients
        if gradients is not None and None in gradients and attempt.seen_in in exchanged:
            beside = [one.gradients for other in ranks for one in other.attempts if one.seen_in == attempt.seen_in]
            gradients = overlaid([gradients, *(one for one in beside if one is not None)])
        yield replace(attempt, gradients=gradients)


def _exchanged(rank: RankEvidence) -> set[int | None]:
    """The windows after whose step ranks exchanged what may be weights."""
    size = max((len(attempt.weights) for attempt in rank.attempts), default=0)
    stepped: int | None = None
    found = set[int | None]()
    for event in rank.events.events:
        if isinstance(event, trace.Attempt):
            stepped = event.window
        elif isinstance(event, Forward) and not event.extra:
            stepped = None
        elif stepped is not None and _may_carry_weights(event, size):
            found.add(stepped)
    return found


def _may_carry_weights(event: trace.Event, size: int) -> bool:
    if not isinstance(event, trace.Collective | trace.Receive):
        return False
    return event.of == "parameters" or (event.of is None and event.elements >= size)


def _by_hand(
    rank: Rank, held: Mapping[int, Vector], skipped: Collection[int | None], elsewhere: Collection[int | None]
) -> Iterator[Attempt]:
    """An attempt for each window whose weights came out other than they went in, or that the ranks that step skipped:
    another one that is skipped leaves no trace, unless a GradScaler has skipped it. A rank that owns nothing is to get
    what others have stepped ``elsewhere``."""
    for window in rank.windows:
        number, before = window.number, _shown_by(next(iter(window.forwards), None))
        if before is None or number not in held:
            continue
        has_moved = not same(held[number], before) or (rank.owns_nothing and number in elsewhere)
        if has_moved or number in skipped:
            scales = [float(step.scale) for step in window.of(ScalerStep)]
            scale = scales[-1] if scales else None
            yield Attempt(number, number, stepped=has_moved, gradients=None, weights=held[number], scale=scale)


def _sent(rank: Rank, held: Mapping[int, Vector], elsewhere: Mapping[int | None, Attempt]) -> Iterator[Attempt]:
    """The attempt of another rank for each window that this one does not step, and whose weights it is sent."""
    for window in rank.windows:
        number = window.number
        if not window.attempts and window.step_is_unseen and number in held and number in elsewhere:
            yield replace(elsewhere[number], weights=held[number])


def _shown_by(event: Forward | Finished | Report | None) -> Vector | None:
    return None if event is None or event.weights is None else values(event.weights)


def _within(rank: RankEvidence) -> Iterator[str]:
    """Where weights changed between two forwards of a window, and no step of an optimizer of torch's changed them."""
    window: int | None = None
    has_stepped = False
    before: Sequence[Any] = ()
    for event in rank.events.events:
        has_stepped |= isinstance(event, trace.Attempt)
        if isinstance(event, Forward) and not event.extra:
            shown = event.weights
            if shown is not None and event.window == window and not has_stepped and _differ(before, shown):
                yield f"rank {rank.outcome.rank}, window {window}, before micro-batch {event.micro_batch}"
            before = before if shown is None else shown
            window, has_stepped = event.window, False


def _differ(before: Sequence[Any], shown: Sequence[Any]) -> bool:
    """Whether a weight that was seen is seen to be another. One that is gathered only later was not seen before."""
    return any(None not in pair and pair[0] != pair[1] for pair in zip(before, shown, strict=True))
