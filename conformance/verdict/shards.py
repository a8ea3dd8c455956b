"""What goes wrong where parameters are split over the ranks: which weights were put together, and which are used."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cases.case import Case
from conformance.results.records import Vector
from conformance.trace.events import Collective, Finished, Start
from conformance.verdict.comparison import same
from conformance.verdict.evidence import RankEvidence, named, values


def hole(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """The first element of the weights that no rank shows, by its name; None if there is none. Ranks that disagree on
    when they step show less, which is no hole."""
    if len({tuple(attempt.window for attempt in rank.attempts) for rank in ranks}) > 1:
        return None
    names = case.problem.workload.model.elements
    held = [
        weights for rank in ranks for weights in (*(one.weights for one in rank.attempts), rank.final_weights or ())
    ]
    return next((names[weights.index(None)] for weights in held if None in weights), None)


def split_apart(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Says so if training begins with weights put together from the ranks' own, and not with those of one rank."""
    starts: list[Vector] = [tuple(map(float, case.problem.workload.start_of(at))) for at in range(len(ranks))]
    for rank in ranks:
        begun = next((values(one.weights or ()) for one in rank.events.of(Start)), ())
        columns = list(zip(begun, *starts, strict=False))
        if rank.shard is None or begun in starts or not columns:
            continue
        holders = [next((at for at, one in enumerate(ranks) if one.holds(index)), 0) for index in range(len(columns))]
        if all(value == own[holder] for (value, *own), holder in zip(columns, holders, strict=True)):
            return (
                f"training begins with weights put together from those of {named(sorted(set(holders)))}, which differ: "
                "each rank has kept a part of its own; broadcast the weights of one rank before they are sharded"
            )
    return None


def copies_apart(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Says so if the ranks' models end with different weights, of whose masters each rank has stepped a part."""
    ends = [next((one.copies for one in rank.events.of(Finished) if one.copies), ()) for rank in ranks]
    for name, *copies in zip(case.problem.workload.model.elements, *ends, strict=False):
        if len({value for value in copies if value is not None}) > 1:
            return (
                f"the ranks' models end with different values of {name}: {', '.join(map(str, copies))}; after the last "
                "step, too, each must get what the others have stepped"
            )
    return None


def without_gradients(ranks: Sequence[RankEvidence]) -> str:
    """Why the shards of ranks have gradients in none of their steps."""
    groups = [
        event.group
        for rank in ranks
        for event in rank.events.of(Collective)
        if event.of == "gradients" and "reduce_scatter" in event.op
    ]
    if not groups:
        return (
            "no backward has reduced and scattered the gradients, so the shards have none: call "
            "`set_requires_gradient_sync(True)` before the last backward of a window"
        )
    if all(len(group or ranks) < len(ranks) for group in groups):
        return (
            f"{named(groups[0])} reduced and scattered gradients, and no backward has averaged these with those of the "
            "other ranks, which hold copies of their shards, so the shards have none: call "
            "`set_requires_all_reduce(True)` before the last backward of a window"
        )
    return "gradients were reduced and scattered, but the shards had none when they were stepped: clear them after it"


def kept_over_step(rank: RankEvidence, step: int) -> str | None:
    """Says so if the forwards after step ``step - 1`` use the weights that were gathered before it."""
    if rank.shard is None or step == 0:
        return None
    last, now = rank.steps[step - 1 : step + 1]
    used: dict[int | None, Vector] = {}
    for event in rank.events.forwards:
        if event.weights:
            used.setdefault(event.window, values(event.weights))
    weights = used.get(now.seen_in)
    if weights is None or used.get(last.seen_in) != weights or same(weights, last.weights):
        return None
    return (
        f"the forwards of window {now.seen_in} use the weights from before the step of window {last.seen_in}: what was "
        "gathered for that window was kept over the step; let the last backward of a window reshard, which "
        "`set_reshard_after_backward(False)` forbids"
    )
