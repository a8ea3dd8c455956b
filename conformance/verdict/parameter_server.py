"""Workers of a parameter server: another rank makes their optimizer steps and sends them the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.adapter.backends import BACKENDS
from conformance.results.records import Vector
from conformance.verdict.evidence import Attempt, RankEvidence, values


def with_served(ranks: Sequence[RankEvidence], backend: str) -> tuple[RankEvidence, ...]:
    """The same evidence, in which ranks that never step get the steps that the server made for them.

    They get the server's gradients and loss scales, which changed their weights. After the server's last step in a
    window, they get the weights that they themselves held next: at the first forward of their next window, or at the
    end. They see nothing of earlier steps in the window, which a right server does not make.
    """
    servers = [rank for rank in ranks if rank.attempts]
    if not BACKENDS[backend].one_rank_steps or len(servers) != 1:
        return tuple(ranks)
    [server] = servers
    return tuple(rank if rank is server else replace(rank, attempts=_served(rank, server)) for rank in ranks)


def _served(rank: RankEvidence, server: RankEvidence) -> tuple[Attempt, ...]:
    held = _held_after(rank)
    last = {attempt.seen_in: attempt for attempt in server.attempts}
    return tuple(
        replace(attempt, weights=held[attempt.seen_in]) if attempt is last[attempt.seen_in] else attempt
        for attempt in server.attempts
        if attempt.seen_in in held
    )


def _held_after(rank: RankEvidence) -> dict[int, Vector]:
    """The weights that a rank held after each of its windows."""
    begins = [event for event in rank.outcome.events if event["event"] == "forward" and event["weights"] is not None]
    held: dict[int, Vector] = {event["window"] - 1: values(event["weights"]) for event in begins}
    if begins and rank.final_weights is not None:
        held[begins[-1]["window"]] = rank.final_weights
    return held
