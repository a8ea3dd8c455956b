"""Steps that no optimizer of torch's takes, seen by the weights with which each window begins.

A functional update, an optimizer that is none of torch's, fp32 master weights that are copied back, shards of
parameters that the ranks exchange after a step, a parameter server: whatever changes the weights, the next window's
first forward uses what came of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from conformance.adapter.backends import BACKENDS
from conformance.results.records import Vector
from conformance.verdict.comparison import same
from conformance.verdict.evidence import Attempt, RankEvidence, values


def with_watched_weights(ranks: Sequence[RankEvidence], backend: str) -> tuple[RankEvidence, ...]:
    """The same evidence, with the weights that came of each window as its attempt's, and with attempts for ranks that
    never step an optimizer of torch's.

    Where the only rank that steps serves the others, those get its gradients and loss scales, which changed their
    weights. They see nothing of earlier steps in a window, which a right server does not make.
    """
    servers = [rank for rank in ranks if rank.attempts] if BACKENDS[backend].one_rank_steps else []
    server = servers[0] if len(servers) == 1 else None
    return tuple(_watched(rank, rank.attempts or (server.attempts if server else ())) for rank in ranks)


def _watched(rank: RankEvidence, attempts: Sequence[Attempt]) -> RankEvidence:
    held = held_after(rank)
    by_hand = () if any(attempt.stepped for attempt in attempts) else tuple(_by_hand(rank, held))
    if by_hand:
        taken = sorted((*attempts, *by_hand), key=lambda attempt: attempt.window)
        return replace(rank, attempts=tuple(taken), changes=tuple(_within(rank)))
    last = {attempt.seen_in: attempt for attempt in attempts}
    return replace(
        rank,
        attempts=tuple(
            _with_weights(attempt, held[attempt.seen_in], is_own=bool(rank.attempts))
            if attempt is last[attempt.seen_in] and attempt.seen_in in held
            else attempt
            for attempt in attempts
            if rank.attempts or attempt.seen_in in held
        ),
        changes=(*_within(rank), *_after_steps(rank, held)),
    )


def _with_weights(attempt: Attempt, weights: Vector, *, is_own: bool) -> Attempt:
    if same(attempt.weights, weights):
        return attempt
    # What has changed the weights after a rank's own step may be other ranks' gradients, as where weights are averaged.
    return replace(attempt, weights=weights, gradients=None if is_own else attempt.gradients)


def _by_hand(rank: RankEvidence, held: Mapping[int, Vector]) -> Iterator[Attempt]:
    """An attempt for each window whose weights came out other than they went in: a skipped one leaves no trace, unless
    a GradScaler has skipped it."""
    scales = {
        event["window"]: float(event["scale"]) for event in rank.outcome.events if event["event"] == "scaler_step"
    }
    for event in _begins(rank):
        window, before = event["window"], values(event["weights"])
        if window in held and not same(held[window], before):
            yield Attempt(window, window, stepped=True, gradients=None, weights=held[window], scale=scales.get(window))


def held_after(rank: RankEvidence) -> dict[int, Vector]:
    """The weights that came of each window: those with which the next one begins, or that the trainer ended with."""
    begins = list(_begins(rank))
    held = {event["window"]: values(later["weights"]) for event, later in pairwise(begins)}
    last = next((event["window"] for event in reversed(rank.outcome.events) if event["window"] is not None), None)
    if last is not None and rank.final_weights is not None:
        held[last] = rank.final_weights
    return held


def _begins(rank: RankEvidence) -> Iterator[dict[str, Any]]:
    """The first training forward of each window, where it shows weights."""
    window = None
    for event in rank.outcome.events:
        if event["event"] == "forward" and event["weights"] is not None and event["window"] != window:
            window = event["window"]
            yield event


def _within(rank: RankEvidence) -> Iterator[str]:
    """Where weights changed between two forwards of a window, and no step of an optimizer of torch's changed them."""
    window, has_stepped = None, False
    for event in rank.outcome.events:
        has_stepped |= event["event"] in ("step", "skip")
        if event["event"] == "forward" and not event.get("extra"):
            if event["weights"] is not None and event["window"] == window and not has_stepped:
                yield f"rank {rank.outcome.rank}, window {window}, before micro-batch {event['micro_batch']}"
            window, has_stepped = event["window"], False


def _after_steps(rank: RankEvidence, held: Mapping[int, Vector]) -> Sequence[str]:
    """Where weights changed between a step and the next window; not if they do so after all steps, as where master
    weights are copied back."""
    last = {one.seen_in: one for one in rank.attempts if one.stepped and one.seen_in is not None}
    shown = {window: attempt for window, attempt in last.items() if window in held}
    moved = [window for window, attempt in shown.items() if not same(held[window], attempt.weights)]
    if len(moved) == len(shown) > 1:
        return ()
    return [f"rank {rank.outcome.rank}, after the step of window {window}" for window in moved]
