"""Trainers whose steps or weights cannot be observed: nothing can be said against them, nor for them."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.case import Case
from conformance.results.records import Vector
from conformance.verdict.comparison import same
from conformance.verdict.evidence import RankEvidence


def unobserved(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Why the numbers of a run cannot be judged, and what would make that possible; None if they can be."""
    for rank in ranks:
        held = [attempt.weights for attempt in rank.attempts] + ([rank.final_weights] if rank.final_weights else [])
        took_model = any(event["event"] == "model" for event in rank.outcome.events)
        if took_model and any(None in weights for weights in held):
            return (
                f"the parameters are split over the ranks: rank {rank.outcome.rank} does not hold whole weights, so "
                "they cannot be compared; run a path that keeps whole weights, such as DDP"
            )
    if any(rank.attempts for rank in ranks):
        return None
    for rank in ranks:
        final = rank.final_weights
        # A rank without the model has no weights. Ranks that start apart are made equal to rank 0.
        if final and None not in final and not any(same(final, _start(case, of)) for of in (0, rank.outcome.rank)):
            return (
                f"the weights of rank {rank.outcome.rank} changed, but no step of torch's Optimizer changed them, so "
                "the steps cannot be compared; derive the optimizer from torch.optim.Optimizer, and give it the "
                "parameters of the module that task.model() returns"
            )
    return None


def _start(case: Case, rank: int) -> Vector:
    return tuple(map(float, case.problem.workload.start_of(rank)))
