"""Workers of a parameter server: another rank takes their optimizer steps and sends them the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformance.verdict.evidence import Attempt, Observed, RankEvidence, values


def with_served(ranks: Sequence[RankEvidence], backend: str) -> tuple[RankEvidence, ...]:
    """The same evidence; ranks that never step are given the steps that the server took for them.

    Its gradients and loss scales are theirs, as it is by these that their weights changed. The weights after each of
    its steps are those that they themselves held next: at their next window's first forward, or at the end.
    """
    servers = [rank for rank in ranks if rank.attempts]
    if backend != "parameter-server" or len(servers) != 1:
        return tuple(ranks)
    [server] = servers
    return tuple(rank if rank is server else replace(rank, attempts=_served(rank, server)) for rank in ranks)


def _served(rank: RankEvidence, server: RankEvidence) -> tuple[Attempt, ...]:
    held = _held_after(rank)
    return tuple(
        replace(attempt, weights=held[attempt.window]) for attempt in server.attempts if attempt.window in held
    )


def _held_after(rank: RankEvidence) -> dict[int, Observed]:
    """The weights that a rank held after each of its windows."""
    begins = [event for event in rank.outcome.events if event["event"] == "forward" and event["weights"] is not None]
    held = {_window(event) - 1: values(event["weights"]) for event in begins if event["window"] is not None}
    if begins and rank.final_weights is not None:
        held[_window(begins[-1])] = rank.final_weights
    return held


def _window(event: Mapping[str, Any]) -> int:
    return int(event["window"] or 0)
