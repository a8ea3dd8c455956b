"""Trainers whose steps or weights cannot be observed, and those whose parameters are split over the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.cases.case import Case
from conformance.oracle.accepted_readings import must_step
from conformance.oracle.recurrence import Trajectory
from conformance.results.records import Vector
from conformance.trace import events as trace
from conformance.trace.events import Collective, Finished, Start
from conformance.verdict.answers import row_numbers
from conformance.verdict.comparison import matches, same
from conformance.verdict.evidence import RankEvidence, named, values
from conformance.verdict.reported import ends_unstepped, is_at_start, never_written, unreported
from conformance.verdict.resuming import resumed_unseen


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
    used = {event.window: values(event.weights) for event in reversed(rank.events.forwards) if event.weights}
    weights = used.get(now.seen_in)
    if weights is None or used.get(last.seen_in) != weights or same(weights, last.weights):
        return None
    return (
        f"the forwards of window {now.seen_in} use the weights from before the step of window {last.seen_in}: what was "
        "gathered for that window was kept over the step; let the last backward of a window reshard, which "
        "`set_reshard_after_backward(False)` forbids"
    )


_TRAINING = (trace.BackwardBegin, trace.AutogradGrad, trace.Step, trace.Skip)


def unobserved(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Why the numbers of a run cannot be judged, and what would make that possible; None if they can be."""
    return next(_unobserved(case, ranks), None)


def _unobserved(case: Case, ranks: Sequence[RankEvidence]) -> Iterator[str]:
    if any(rank.shard is not None for rank in ranks) and (missing := hole(case, ranks)) is not None:
        yield (
            f"the shards that the ranks hold leave {missing} out, so the weights cannot be put together; shard with "
            "`fully_shard`, or with DTensors that are placed by `Shard` and `Replicate`"
        )
    if case.resumed == "killed" and not ranks[0].lives:
        yield (
            "rank 0 wrote no file of more than 64 bytes in its own process after it was to save again, so it was not "
            "killed while it saved: save in rank 0, after each of `task.save_after` windows"
        )
    if case.problem.workload.own_order and case.orders is None:
        yield (
            "the order of the samples is the trainer's own, and the forwards do not show which samples went in, so the "
            "numbers cannot be compared; pass the model the inputs as they are in the batch"
        )
    if (unseen := resumed_unseen(ranks)) is not None:
        yield unseen
    for rank in ranks:
        is_split = any(
            None in weights for weights in (*(one.weights for one in rank.attempts), rank.final_weights or ())
        )
        if rank.events.of(trace.Model) and rank.shard is None and is_split and not rank.reported:
            yield (
                f"the parameters are split over the ranks: rank {rank.number} does not hold whole weights, so "
                "they cannot be compared, and nothing says which part it holds; shard them with `fully_shard` (FSDP2), "
                "run a path that keeps whole weights, such as DDP, or report them with `task.report`"
            )
    for rank in ranks:
        if rank.events.of(trace.Fork) and not rank.attempts and not rank.events.has(_TRAINING):
            yield (
                f"rank {rank.number} started another process and computed no gradients in its own; what another "
                "process does cannot be seen, so train in the one that calls the function under `@trainer`"
            )
    if (missing := unreported(ranks, must_step(case.problem))) is not None:
        yield missing
    yield from _unseen_steps(case, ranks)


def _unseen_steps(case: Case, ranks: Sequence[RankEvidence]) -> Iterator[str]:
    """Of lives without a step of an optimizer of torch's: which weights came of what, if that does not show."""
    has_stepped = any(rank.steps for rank in ranks)
    for life in (life for rank in ranks if not rank.reported for life in rank.lives or (rank,)):
        # A rank without the model has no weights.
        if not ends_unstepped(life):
            continue
        other = life.events.first(trace.ForeignOptimizer)
        if never_written(case, life):
            yield (
                f"the forwards of rank {life.number} used weights that the model's own parameters never had, so "
                "its last step cannot be seen; write them back at the end, with `model.load_state_dict(weights)`, or "
                "report them with `task.report`"
            )
        elif has_stepped or is_at_start(case, life):
            continue
        elif other is not None:
            yield (
                f"rank {life.number} stepped parameters of shape {other.shapes} beside the "
                "task's model, whose weights changed afterwards, so the steps cannot be compared; put an adapter on "
                "the module that task.model() returns with `torch.nn.utils.parametrize`, or train its own weights"
            )
        else:
            yield (
                f"the weights of rank {life.number} changed, but no step of torch's Optimizer changed them, and "
                "no forward showed when, so the steps cannot be compared; call the module that task.model() returns, "
                "or derive the optimizer from torch.optim.Optimizer, in the process that calls the function under "
                "`@trainer`"
            )


def unplaced(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Why it is not known which windows the steps of a run end, and what would show it; None if it is known.

    Windows that a loss scaler of the trainer's own skips leave no trace. Where also the rows are not those planned, the
    places of forwards are a guess, which shows in rows that are not of their window.
    """
    for rank in ranks if case.arithmetic.scaled else ():
        has_gaps = 0 < len(rank.attempts) < len(must_step(case.problem))
        if has_gaps and all(attempt.scale is None for attempt in rank.attempts) and not _are_placed(case, rank):
            return (
                f"rank {rank.number} took {len(rank.attempts)} steps in {len(case.problem.windows)} windows, and "
                "nothing shows which it skipped, as its forwards are of other rows than planned; pass the model the "
                "inputs as they are in the batch, call `optimizer.zero_grad()` in each window, or step with "
                "`torch.amp.GradScaler`"
            )
    return None


def _are_placed(case: Case, rank: RankEvidence) -> bool:
    """Whether the training forwards of each window are of rows of its batch, or of as many rows as planned."""
    rows = defaultdict[int, list[int | None]](list)
    for event in rank.events.forwards:
        if event.window is not None:
            rows[event.window] += event.rows
    windows, of = case.problem.windows, row_numbers(case.problem)
    batches = {window.index: {of[sample.x] for sample in window.batch} for window in windows}
    number = rank.number
    planned = {window.index: sum(map(len, window.shares[number])) for window in windows if number < window.world_size}
    return all(
        len(seen) == planned.get(at) if None in seen else batches.get(at, set()).issuperset(seen)
        for at, seen in rows.items()
    )


def changed_after_training(ranks: Sequence[RankEvidence], right: Trajectory | None) -> str | None:
    """Why the weights that training ends with say nothing of its steps, where these are right; None if they do."""
    if right is None or not all(rank.attempts and rank.final_weights for rank in ranks):
        return None
    stepped = []
    for rank in ranks:
        # With what the optimizer's last step made of the weights, whatever training ends with.
        *earlier, last = rank.attempts
        for step in rank.events.of(trace.Attempt)[-1:]:
            if step.window == last.seen_in and step.weights is not None:
                last = replace(last, weights=values(step.weights))
        stepped.append(replace(rank, attempts=(*earlier, last)))
    if all(one.attempts == rank.attempts for one, rank in zip(stepped, ranks, strict=True)):
        return None
    if not matches(stepped, right.steps):
        return None
    return (
        "all steps are right, but after the last one the weights become others, and it is not known what for; return "
        "from the function under `@trainer` before averaged or earlier weights are loaded, adapters are merged, or the "
        "model is cast to another type, and after what the last step made of masters is copied to the model"
    )
