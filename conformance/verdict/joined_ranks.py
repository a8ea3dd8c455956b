"""Ranks that run out of data before others: they take no step of their own then, and get the weights at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.verdict.evidence import Attempt, RankEvidence
from conformance.workloads.layout import Window


def with_joined_ranks(ranks: Sequence[RankEvidence], windows: Sequence[Window]) -> tuple[RankEvidence, ...]:
    """The same evidence, with attempts for the windows in which a rank has no samples and takes no step: those of the
    ranks that go on, with the weights that it ends with, and without a loss scale, which it needs none of."""
    return tuple(replace(rank, attempts=(*rank.attempts, *_served(rank, ranks, windows))) for rank in ranks)


def _served(rank: RankEvidence, ranks: Sequence[RankEvidence], windows: Sequence[Window]) -> Iterator[Attempt]:
    number, taken = rank.outcome.rank, {attempt.window for attempt in rank.attempts}
    own = [window.index for window in windows if window.shares[number]]
    others = {attempt.window: attempt for other in ranks for attempt in other.attempts if attempt.window not in taken}
    if len(own) == len(windows) or rank.final_weights is None or own[-1] + 1 not in others:
        return
    # Only a next forward shows what came of a step without an optimizer of torch's. What a rank ends with counts.
    if own[-1] in others and not any(event["event"] in ("step", "skip") for event in rank.outcome.events):
        yield others[own[-1]]
    later = (attempt for window, attempt in others.items() if window > own[-1])
    yield from (replace(attempt, weights=rank.final_weights, scale=None) for attempt in later)
