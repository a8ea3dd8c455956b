"""Ranks that run out of data before others: they take no step of their own then, and get the weights at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.results.records import Vector
from conformance.trace import events as trace
from conformance.verdict.evidence import Attempt, RankEvidence, values
from conformance.workloads.layout import Window


def with_joined_ranks(ranks: Sequence[RankEvidence], windows: Sequence[Window]) -> tuple[RankEvidence, ...]:
    """The same evidence, with attempts for the windows in which a rank has no samples and takes no step: those of the
    ranks that go on, with the weights that it begins the next epoch or ends with, and without a loss scale, which it
    needs none of."""
    return tuple(_with_served(rank, ranks, windows) for rank in ranks)


def _with_served(rank: RankEvidence, ranks: Sequence[RankEvidence], windows: Sequence[Window]) -> RankEvidence:
    served = [attempt for window in windows for attempt in _served(rank, ranks, window, windows)]
    if not served:
        return rank
    return replace(rank, attempts=tuple(sorted((*rank.attempts, *served), key=lambda attempt: attempt.window)))


def _served(
    rank: RankEvidence, ranks: Sequence[RankEvidence], window: Window, windows: Sequence[Window]
) -> Iterator[Attempt]:
    number, taken = rank.outcome.rank, {attempt.window for attempt in rank.attempts}
    others = {attempt.window: attempt for other in ranks for attempt in other.attempts if attempt.window not in taken}
    weights = _shown_after(rank, window)
    # A rank that is not there in a life of the run has not run out of data.
    if number >= window.world_size or window.shares[number] or window.index not in others or weights is None:
        return
    # Only a next forward shows what came of a step without an optimizer of torch's. What a rank ends with counts.
    own = max(one.index for one in windows if one.index < window.index and one.shares[number])
    if own in others and rank.steps_by_hand:
        yield others[own]
    yield replace(others[window.index], weights=weights, scale=None)


def _shown_after(rank: RankEvidence, window: Window) -> Vector | None:
    """The weights with which a rank goes on after a window in which it has no samples."""
    forwards = (event for event in rank.events.of(trace.Forward) if (event.window or 0) > window.index)
    return next((values(event.weights) for event in forwards if event.weights), rank.final_weights)
