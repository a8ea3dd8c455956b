"""Finds steps or weights that cannot be observed, and judges parameters that are sharded over the ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.cases.case import Case
from conformance.oracle.accepted_readings import must_step
from conformance.oracle.recurrence import Trajectory
from conformance.results.result_lines import Vector
from conformance.trace import events as trace
from conformance.trace.events import Collective, Finished, Start
from conformance.verdict.comparison import matches, same
from conformance.verdict.evidence import RankEvidence, named, values
from conformance.verdict.judgement import Told
from conformance.verdict.reported import ends_unstepped, is_at_start, never_written, unreported
from conformance.verdict.stop_and_resume import resumed_unseen


def hole(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """The name of the first element of the weights that no rank shows; None if there is none. Ranks that step in
    different windows show less, which is no hole."""
    if len({tuple(attempt.window for attempt in rank.attempts) for rank in ranks}) > 1:
        return None
    names = case.problem.workload.model.elements
    held = [
        weights for rank in ranks for weights in (*(one.weights for one in rank.attempts), rank.final_weights or ())
    ]
    return next((names[weights.index(None)] for weights in held if None in weights), None)


def split_apart(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if training starts from a mix of the ranks' own weights instead of one rank's; else None."""
    starts: list[Vector] = [tuple(map(float, case.problem.workload.start_of(at))) for at in range(len(ranks))]
    for rank in ranks:
        initial = next((values(one.weights or ()) for one in rank.events.of(Start)), ())
        columns = list(zip(initial, *starts, strict=False))
        if rank.shard is None or initial in starts or not columns:
            continue
        holders = [next((at for at, one in enumerate(ranks) if one.has(index)), 0) for index in range(len(columns))]
        if all(value == own[holder] for (value, *own), holder in zip(columns, holders, strict=True)):
            return Told(
                f"training starts from a mix of the weights of {named(sorted(set(holders)))}, which differ: each rank "
                "kept its own part",
                "broadcast the weights of one rank before sharding",
            )
    return None


def copies_apart(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if the ranks' models end with different weights although each rank stepped a part of the masters."""
    ends = [next((one.copies for one in rank.events.of(Finished) if one.copies), ()) for rank in ranks]
    for name, *copies in zip(case.problem.workload.model.elements, *ends, strict=False):
        if len({value for value in copies if value is not None}) > 1:
            return Told(
                f"the ranks' models end with different values of {name}: {', '.join(map(str, copies))}",
                "exchange the stepped weights after the last step too",
            )
    return None


def without_gradients(ranks: Sequence[RankEvidence]) -> Told:
    """A phrase on why shards never have gradients in steps."""
    groups = [
        event.group
        for rank in ranks
        for event in rank.events.of(Collective)
        if event.of == "gradients" and "reduce_scatter" in event.op
    ]
    if not groups:
        return Told(
            "no backward reduced and scattered the gradients, so the shards have none",
            "call `set_requires_gradient_sync(True)` before the last backward of a window",
        )
    if all(len(group or ranks) < len(ranks) for group in groups):
        return Told(
            f"{named(groups[0])} reduced and scattered gradients, but no backward averaged them with the other ranks, "
            "which have copies of these shards, so the shards have none",
            "call `set_requires_all_reduce(True)` before the last backward of a window",
        )
    return Told(
        "gradients were reduced and scattered, but the shards had none at the step",
        "clear gradients only after the step",
    )


def kept_over_step(rank: RankEvidence, step: int) -> Told | None:
    """A sentence if the forwards after step ``step - 1`` use weights that were gathered before it; else None."""
    if rank.shard is None or step == 0:
        return None
    last, now = rank.steps[step - 1 : step + 1]
    used = {event.window: values(event.weights) for event in reversed(rank.events.forwards) if event.weights}
    weights = used.get(now.seen_in)
    if weights is None or used.get(last.seen_in) != weights or same(weights, last.weights):
        return None
    return Told(
        f"the forwards of window {now.seen_in} use the weights from before the step of window {last.seen_in}: the "
        "gathered weights were kept over the step",
        "let the last backward of a window reshard, which `set_reshard_after_backward(False)` prevents",
    )


_TRAINING = (trace.BackwardBegin, trace.AutogradGrad, trace.Step, trace.Skip)


def unobserved(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """Why the numbers of a run cannot be judged, and how to change that; None if they can be."""
    return next(_unobserved(case, ranks), None)


def _unobserved(case: Case, ranks: Sequence[RankEvidence]) -> Iterator[Told]:
    if any(rank.shard is not None for rank in ranks) and (missing := hole(case, ranks)) is not None:
        yield Told(
            f"the ranks' shards leave out {missing}, so the weights are incomplete",
            "shard with `fully_shard`, or with DTensors that are placed by `Shard` and `Replicate`",
        )
    if case.resumed == "killed" and not ranks[0].lives:
        yield Told(
            "rank 0's process wrote no file over 64 bytes when it should have saved again, so it was not killed while "
            "saving",
            "save in rank 0, after each of `task.save_after` windows",
        )
    if case.problem.workload.own_order and case.orders is None:
        yield Told(
            "the trainer chooses the order of the samples, and the forwards do not show which samples they got, so the "
            "numbers cannot be compared",
            "pass the batch's inputs to the model unchanged",
        )
    if (unseen := resumed_unseen(ranks)) is not None:
        yield unseen
    for rank in ranks:
        is_split = any(
            None in weights for weights in (*(one.weights for one in rank.attempts), rank.final_weights or ())
        )
        if rank.events.of(trace.Model) and rank.shard is None and is_split and not rank.reported:
            yield Told(
                f"the parameters are sharded: rank {rank.number} has an unknown part of the weights, so they cannot be "
                "compared",
                "shard with `fully_shard`, keep whole weights, as DDP does, or report them with `task.report`",
            )
    for rank in ranks:
        if rank.events.of(trace.Fork) and not rank.attempts and not rank.events.has(_TRAINING):
            yield Told(
                f"rank {rank.number} started another process, which is not visible, and computed no gradients itself",
                "train in the process that calls the function under `@trainer`",
            )
    if (untold := unreported(ranks, must_step(case.problem))) is not None:
        yield untold
    yield from _unseen_steps(case, ranks)


def _unseen_steps(case: Case, ranks: Sequence[RankEvidence]) -> Iterator[Told]:
    """Yields sentences on lives without a step of a torch optimizer in which the steps cannot be seen."""
    has_stepped = any(rank.steps for rank in ranks)
    for life in (life for rank in ranks if not rank.reported for life in rank.lives or (rank,)):
        # A rank without the model has no weights.
        if not ends_unstepped(life):
            continue
        other = life.events.first(trace.ForeignOptimizer)
        if never_written(case, life):
            yield Told(
                f"the forwards of rank {life.number} used weights that the model's own parameters never had, so the "
                "last step is not visible",
                "at the end, load them with `model.load_state_dict(weights)`, or report them with `task.report`",
            )
        elif has_stepped or is_at_start(case, life):
            continue
        elif other is not None:
            yield Told(
                f"rank {life.number} stepped parameters of shape {other.shapes} outside the task's model, which "
                "changed afterwards, so the steps cannot be compared",
                "put adapters on `task.model()` with `torch.nn.utils.parametrize`, or train its own weights",
            )
        else:
            yield Told(
                f"the weights of rank {life.number} changed without a step of torch's Optimizer, and no forward showed "
                "when, so the steps cannot be compared",
                "call the module that `task.model()` returns, or derive the optimizer from `torch.optim.Optimizer`, in "
                "the trainer's process",
            )


def unplaced(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if the windows of a run's steps are unknown, and how to show them; None if they are known.

    Windows that a trainer's own loss scaler skips leave no trace. If the rows are also not the planned ones, the places
    of forwards are a guess, which shows in rows that are not of their window.
    """
    for rank in ranks if case.arithmetic.scaled else ():
        has_gaps = 0 < len(rank.attempts) < len(must_step(case.problem))
        if has_gaps and all(attempt.scale is None for attempt in rank.attempts) and not _are_placed(case, rank):
            return Told(
                f"rank {rank.number} took {len(rank.attempts)} steps in {len(case.problem.windows)} windows, and its "
                "forwards have other rows than planned, so the skipped windows are unknown",
                "pass the batch's inputs to the model unchanged, call `optimizer.zero_grad()` in each window, or step "
                "with `torch.amp.GradScaler`",
            )
    return None


def _are_placed(case: Case, rank: RankEvidence) -> bool:
    """Whether the training forwards of each window have rows of its batch, or as many rows as planned."""
    rows = defaultdict[int, list[int | None]](list)
    for event in rank.events.forwards:
        if event.window is not None:
            rows[event.window] += event.rows
    windows, of = case.problem.windows, case.problem.workload.rows
    batches = {window.index: {of[at] for at in window.samples} for window in windows}
    number = rank.number
    planned = {window.index: sum(map(len, window.shares[number])) for window in windows if number < window.world_size}
    return all(
        len(seen) == planned.get(at) if None in seen else batches.get(at, set()).issuperset(seen)
        for at, seen in rows.items()
    )


def changed_after_training(ranks: Sequence[RankEvidence], right: Trajectory | None) -> Told | None:
    """A sentence if all steps are correct, but the last weights are not those of the steps; else None."""
    if right is None or not all(rank.attempts and rank.final_weights for rank in ranks):
        return None
    stepped = []
    for rank in ranks:
        # Use the weights of the optimizer's last step instead of the last weights.
        *earlier, last = rank.attempts
        for step in rank.events.of(trace.Attempt)[-1:]:
            if step.window == last.seen_in and step.weights is not None:
                last = replace(last, weights=values(step.weights))
        stepped.append(replace(rank, attempts=(*earlier, last)))
    if all(one.attempts == rank.attempts for one, rank in zip(stepped, ranks, strict=True)):
        return None
    if not matches(stepped, right.steps):
        return None
    return Told(
        "all steps are correct, but the weights change after the last one, for an unknown reason",
        "return with the weights of the last step in the model, neither averaged, earlier, merged nor cast ones",
    )
