"""Guards: checks without which equal numbers mean nothing, such as world size, shards, step count, moving weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from conformance.adapter.backends import BACKENDS
from conformance.cases.case import Case
from conformance.oracle.accepted_readings import must_step
from conformance.results.result_lines import Vector
from conformance.trace.events import Attempt, BackwardEnd, Finished, ForeignOptimizer, Skip, Step
from conformance.verdict.comparison import same
from conformance.verdict.evidence import RankEvidence, exactly, named, place
from conformance.verdict.judgement import (
    COLLECTIVES,
    LEFT_OUT,
    OTHER_ORDER,
    OWN_ORDERS,
    PLACE,
    POSITION,
    SAMPLES,
    SHARDS,
    WEIGHTS,
    Guard,
    Told,
    adds_to,
    guard,
)
from conformance.verdict.observability import copies_apart, without_gradients
from conformance.verdict.orders import (
    each_rank_reads_all,
    in_orders_of_their_own,
    lost_at_stop,
    not_once,
    resumed_in_other_order,
)
from conformance.verdict.precedence import Ground
from conformance.verdict.scaling import other_scale
from conformance.verdict.stop_and_resume import between_windows, in_first_epoch, lost_place
from conformance.verdict.work import gave_nothing, left_over, redundant, unread
from conformance.workloads.outliers import has_infinite_loss

_MOST_NAMED = 3
_EVERYWHERE = "on every rank"


def guards(case: Case, ranks: Sequence[RankEvidence]) -> tuple[Guard, ...]:
    """Checks all guards of a case in which every rank delivered its evidence, the most basic first."""
    checks: list[Callable[[Case, Sequence[RankEvidence]], Guard]] = [_stepped, _holds_what_trains]
    goes_on = [] if case.resumed_at is None else [_goes_on]
    if case.problem.workload.own_order:
        # A trainer that lost its position reads samples twice, or skips some.
        checks, goes_on = [*checks, *goes_on, _each_sample], []
    if not BACKENDS[case.backend].is_seen:
        checks += [_exchanged, _shards]
    else:
        checks += [_world_size, _shards, _contributed, _collectives] if case.world_size > 1 else [_world_size]
    if case.resumed_at is not None:
        checks += [*goes_on, _restores_scale]
    checks += [_step_count, _moved, _left_alone]
    if any(event.copies for rank in ranks for event in rank.events.of(Finished)):
        checks.append(_copies)
    return tuple(check(case, ranks) for check in checks)


def _on_every_rank(
    name: str, without: Sequence[RankEvidence], text: str, ground: Ground = "guard", advice: str = ""
) -> Guard:
    """A guard that fails on the ranks in ``without``. ``{}`` in the text: these ranks."""
    if not without:
        return guard(name, _EVERYWHERE, None)
    which = named([rank.number for rank in without])
    return guard(name, _EVERYWHERE, text.format(which), f"not on {which}", ground=ground, advice=advice)


def _stepped(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    other = next(filter(None, (rank.events.first(ForeignOptimizer) for rank in ranks)), None)
    text, advice = "{} never stepped the task's model", "call `optimizer.step()` on the model's parameters"
    if other and any(rank.shard is not None for rank in ranks):
        text = (
            f"the shards of {{}} never changed: the optimizer stepped other tensors, of shape {other.shapes}, such as "
            "copies"
        )
        advice = "create the optimizer from `model.parameters()` after `fully_shard`, or write the stepped tensors back"
    elif other:
        text = f"{{}} stepped parameters of shape {other.shapes}, which are not the task's model"
        advice = "train the module that `task.model()` returns, or report its weights with `task.report`"
    without = [rank for rank in ranks if not rank.attempts]
    return _on_every_rank("optimizer steps seen", without, text, advice=advice)


def _holds_what_trains(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """If windows have no step: whether later steps found no gradients despite backwards."""
    after = [found for rank in ranks if (found := idle_after(rank)) is not None]
    fewer = all(len(rank.attempts) < case.problem.workload.steps for rank in ranks)
    name, asked = "gradients in what is stepped", "in all steps"
    if not fewer or len(after) < len(ranks):
        return guard(name, asked, None)
    text = (
        f"after the step of window {after[0]}, steps find no gradients despite backwards: the optimizer has the "
        "parameters of an old model, and the losses come from a new one, such as a copy"
    )
    advice = "train the old model, or give the new one an optimizer with the old state"
    return guard(name, asked, text, f"up to window {after[0]}", advice=advice)


def idle_after(rank: RankEvidence) -> int | None:
    """The window of the last step that found gradients, if all later steps found none after a backward; None if there
    is no later step, or no step found any."""
    window, goes_backward, is_idle = None, False, False
    for event in rank.events.events:
        if isinstance(event, BackwardEnd):
            goes_backward = True
        elif isinstance(event, Attempt):
            if event.gradients and all(one is None for one in event.gradients):
                is_idle |= goes_backward
            else:
                window, is_idle = event.window, False
            goes_backward = False
    return window if is_idle else None


def _each_sample(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Extra steps may be of extra samples."""
    wrong, counts = not_once(case), sorted({len(rank.attempts) for rank in ranks if not rank.steps_by_hand})
    lost = lost_at_stop(case) if wrong else None
    if wrong and counts and counts[-1] > case.problem.workload.steps and not each_rank_reads_all(case):
        wrong = Told(_other_count(counts, case.problem.workload.steps))
    return guard(SAMPLES, "once in each epoch", wrong, diagnosis=lost or "")


def _world_size(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    processes = [
        (life.world_size, asked)
        for rank in ranks
        for life, asked in zip(rank.lives or (rank,), case.world_sizes, strict=False)
    ]
    asked = next((asked for reached, asked in processes if (reached or 1) != asked), case.world_size)
    sizes = " or ".join(map(str, sorted({reached or 1 for reached, of_life in processes if of_life == asked})))
    text = Told(f"the trainer has world size {sizes} instead of {asked}", "initialise the process group in every rank")
    # Ranks may communicate without torch.distributed's own groups.
    is_seen = any(reached not in (None, size) for reached, size in processes)
    ground: Ground = "guard" if is_seen else "exchange"
    return guard("world size reached", str(asked), None if sizes == str(asked) else text, sizes, ground=ground)


def _collectives(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Checks only ranks with a step: without one, the start of training is unknown."""
    silent = [rank for rank in ranks if rank.attempts and not rank.trained_collectively]
    others = sorted({op.strip("_") for rank in silent for op in rank.collectives})
    text = "{} took part in no collective or message that could average gradients while training"
    return _on_every_rank(COLLECTIVES, silent, text + (f", only in {', '.join(others)}" if others else ""), "exchange")


def _contributed(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    text, advice = "{} put only zeros into every exchange of gradients", "exchange the gradients of every rank"
    return _on_every_rank("gradients contributed", gave_nothing(case, ranks), text, advice=advice)


def _exchanged(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    text = "{} never exchanged gradients: the optimizer saw only those of the rank's own backwards"
    return _on_every_rank("gradients from elsewhere", [rank for rank in ranks if not rank.took_gradients], text)


def _copies(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    return guard("copies at the end", "the same on all ranks", copies_apart(case, ranks))


def _shards(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    expected = "no two ranks train on the same"
    if (apart := in_orders_of_their_own(case, ranks)) is not None:
        resumed = resumed_in_other_order(case, ranks)
        return guard(SHARDS, expected, resumed or apart, diagnosis=OTHER_ORDER if resumed else OWN_ORDERS)
    if (found := redundant(case, ranks)) is None:
        return guard(SHARDS, expected, None)
    if (left := left_over(case, ranks, found.window, repeats=True)) is not None:
        return adds_to(*left)
    is_resumed = case.resumed_at is not None and found.window >= case.resumed_at
    # After a resume between two windows, a wrong position may look like another rank's samples if samples are equal.
    lost = between_windows(case, ranks) if is_resumed else None
    ground: Ground = "guard" if found.always else "samples"
    if lost is None:
        return guard(SHARDS, expected, found.told, ground=ground)
    return guard(SHARDS, expected, lost, diagnosis=POSITION, ground=ground)


def _goes_on(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    lost = lost_place(case, ranks) or Told("")
    diagnosis = OTHER_ORDER if in_first_epoch(case, ranks) else POSITION
    return guard(PLACE, f"window {case.resumed_at}", lost, lost.text, diagnosis if lost.text else "")


def _restores_scale(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    lost = other_scale(ranks) or Told("")
    return guard("resumed at the same loss scale", "as without a stop", lost, lost.text)


def _step_count(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """One attempt per window. Trainers may drop a short or uneven last window, and leave out a window with an infinite
    loss on all ranks; skips of a custom scaler are not recorded. Steps that only the weights show may outnumber the
    changes of weights."""
    windows = case.problem.windows
    tried = {attempt.window for rank in ranks for attempt in rank.attempts}
    left_out = [one for one in windows if one.index not in tried and any(map(has_infinite_loss, one.batch))]
    unseen = case.arithmetic.scaled and all(attempt.scale is None for rank in ranks for attempt in rank.attempts)
    unseen |= all(rank.attempts and rank.steps_by_hand for rank in ranks)
    fewest = 1 if unseen else len(must_step(case.problem)) - len(left_out)
    counts = sorted({len(rank.attempts) for rank in ranks})
    lost = unread(case, ranks) if counts[0] < len(windows) else None
    text = _other_count(counts, len(windows)) + ("; the ranks must agree" if len(counts) > 1 else "")
    until_stop = {len(rank.lives[0].attempts) for rank in ranks if rank.lives}
    return guard(
        "optimizer steps tried",
        f"{len(windows)}, one per accumulation window",
        None if len(counts) == 1 and fewest <= counts[0] <= len(windows) else text + (f"; {lost}" if lost else ""),
        ", ".join(map(str, counts)),
        POSITION if until_stop == {case.resumed_at} else LEFT_OUT if lost else "",
        ground="samples",
    )


def _other_count(counts: Sequence[int], asked: int) -> str:
    return f"{' or '.join(map(str, counts))} optimizer steps instead of {asked}, one per accumulation window"


def _moved(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    start_of = case.problem.workload.start_of
    still = [
        rank
        for rank in ranks
        if rank.steps and all(tuple(map(exactly, step.weights)) == start_of(rank.number) for step in rank.steps)
    ]
    text, advice = "the weights of {} never changed", ""
    seen = [step.gradients for rank in still for step in rank.steps]
    if any(event.of_replaced for rank in still for event in rank.events.of(Step)):
        text += "; the optimizer was created before the parameters were sharded, and has the old ones"
        advice = "create the optimizer after `fully_shard`"
    elif all(gradients is not None and set(gradients) == {None} for gradients in seen):
        why, advice = (
            without_gradients(ranks)
            if any(rank.shard is not None for rank in ranks)
            else Told(
                "the optimizer's parameters never had a gradient, so the losses depend on others, such as a copy's",
                "wrap, run and step the same model",
            )
        )
        text += f"; {why}"
    return _on_every_rank("weights moved", still, text, advice=advice)


_IN_PART = "optimizers part at an overflow"


def _stepped_in_part(rank: RankEvidence) -> Step | None:
    """The first step of an optimizer in a window in which the scaler skips that of another one."""
    skips = {skip.window for skip in rank.events.of(Skip)}
    return next((step for step in rank.events.of(Step) if step.window in skips), None)


def _left_alone(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Weights must not change in a skipped window. Elsewhere, numbers show whether a change was a step."""
    skipped = []
    for rank in ranks:
        before: Vector = tuple(map(float, case.problem.workload.start_of(0)))
        for attempt in rank.attempts:
            if not attempt.stepped and not same(attempt.weights, before):
                skipped.append(f"rank {rank.number}, skipped window {attempt.window}")
            before = attempt.weights
    if skipped and (parted := next(filter(None, map(_stepped_in_part, ranks)), None)) is not None:
        text = f"in window {parted.window}, one optimizer steps and another one is skipped for an overflow"
        advice = "skip the steps of all optimizers if a gradient of any overflows"
        return guard(WEIGHTS, "nowhere else", text, diagnosis=_IN_PART, where=place(parted), advice=advice)
    changed = [*skipped, *(change for rank in ranks for change in rank.changes)]
    if len(changed) > _MOST_NAMED:
        changed[_MOST_NAMED:] = [f"and {len(changed) - _MOST_NAMED} more"]
    which = "; ".join(changed)
    text = f"the weights changed outside the optimizer's steps: {which}"
    ground: Ground = "guard" if skipped else "explanation"
    diagnosis = "weights changed outside the steps"
    return guard(WEIGHTS, "nowhere else", text if changed else None, which or None, diagnosis, ground=ground)
