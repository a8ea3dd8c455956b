"""Trainers whose steps or weights cannot be observed: nothing can be said against them, nor for them."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.case import Case
from conformance.results.records import Vector
from conformance.verdict.comparison import same
from conformance.verdict.evidence import RankEvidence

_TRAINING = ("backward_begin", "autograd_grad", "step", "skip")


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
    for rank in ranks:
        kinds = {event["event"] for event in rank.outcome.events}
        if "fork" in kinds and not rank.attempts and kinds.isdisjoint(_TRAINING):
            return (
                f"rank {rank.outcome.rank} started another process and computed no gradients in its own; what another "
                "process does cannot be seen, so train in the one that calls the function under `@trainer`"
            )
    for rank in ranks:
        final = rank.final_weights
        # A rank without the model has no weights.
        if not final or None in final or any(event["event"] == "step" for event in rank.outcome.events):
            continue
        # Ranks that start apart are made equal to rank 0.
        is_at_start = any(same(final, _start(case, of)) for of in (0, rank.outcome.rank))
        if rank.steps and is_at_start:
            return (
                f"the forwards of rank {rank.outcome.rank} used weights that the model's own parameters never had, so "
                "its last step cannot be seen; write them back at the end, with `model.load_state_dict(weights)`"
            )
        if not any(rank.steps for rank in ranks) and not is_at_start:
            return (
                f"the weights of rank {rank.outcome.rank} changed, but no step of torch's Optimizer changed them, and "
                "no forward showed when, so the steps cannot be compared; call the module that task.model() returns, "
                "or derive the optimizer from torch.optim.Optimizer, in the process that calls the function under "
                "`@trainer`"
            )
    return None


def _start(case: Case, rank: int) -> Vector:
    return tuple(map(float, case.problem.workload.start_of(rank)))
