"""What must hold before equal numbers mean anything: world size, shards, number of steps, weights that change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from conformance.adapter.backends import BACKENDS
from conformance.cases.case import Case
from conformance.oracle.accepted_readings import must_step
from conformance.results.records import Vector
from conformance.trace.events import Attempt, BackwardEnd, Finished, Step
from conformance.verdict.comparison import same
from conformance.verdict.evidence import RankEvidence, exactly, named
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
    adds_to,
    not_held,
    on_every_rank,
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
from conformance.verdict.resuming import between_windows, in_first_epoch, lost_place
from conformance.verdict.scaling import other_scale
from conformance.verdict.work import gave_nothing, left_over, redundant, unread
from conformance.workloads.outliers import has_infinite_loss


def idle_after(rank: RankEvidence) -> int | None:
    """The window of the last step that found gradients, if each later one found none after a backward; None if there is
    no later one, or no step found any."""
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


_MOST_NAMED = 3


Check = Callable[[Case, Sequence[RankEvidence]], Guard]


def guards(case: Case, ranks: Sequence[RankEvidence]) -> tuple[Guard, ...]:
    """All guards for a case in which every rank delivered its evidence, the most basic first."""
    checks: list[Check] = [_stepped, _holds_what_trains]
    goes_on: list[Check] = [] if case.resumed_at is None else [_goes_on]
    if case.problem.workload.own_order:
        # Who has lost the position reads samples twice, or none of an epoch.
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


def _stepped(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    without = [rank.outcome.rank for rank in ranks if not rank.attempts]
    other = next((rank.other_optimizer for rank in ranks if rank.other_optimizer), None)
    text = f"{named(without)} never stepped the task's model; call optimizer.step() on its parameters"
    if other and any(rank.shard is not None for rank in ranks):
        text = (
            f"the shards of {named(without)} never changed: the optimizer stepped others, of shape {other.shapes}, "
            "such as copies; make it of what `model.parameters()` gives after `fully_shard`, or write back what it has "
            "stepped"
        )
    elif other:
        text = (
            f"{named(without)} stepped parameters of shape {other.shapes}, which are not the task's model; "
            "train the module that task.model() returns, or report its weights with task.report"
        )
    return on_every_rank("optimizer steps seen", without, text)


def _holds_what_trains(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Where windows have no step, whether steps that come later found no gradients, though there were backwards."""
    after = [found for rank in ranks if (found := idle_after(rank)) is not None]
    fewer = all(len(rank.attempts) < case.problem.workload.steps for rank in ranks)
    lost = after[0] if fewer and len(after) == len(ranks) else None
    text = (
        f"after the step of window {lost}, steps find no gradients, though there are backwards: the optimizer holds "
        "the parameters of the model before, and the losses are those of another one, such as a copy; go on with the "
        "model as it is, or make an optimizer of the new one and load the state of the old one into it"
    )
    observed = "in all steps" if lost is None else f"up to window {lost}"
    return Guard("gradients in what is stepped", lost is None, "in all steps", observed, text)


def _each_sample(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Steps that no epoch asks for may be of samples that no epoch asks for either."""
    wrong, counts = not_once(case) or "", sorted({len(rank.attempts) for rank in ranks if not rank.steps_by_hand})
    too_many = bool(counts) and counts[-1] > case.problem.workload.steps
    lost = wrong and lost_at_stop(case)
    if wrong and too_many and not each_rank_reads_all(case):
        wrong = _other_count(counts, case.problem.workload.steps)
    once = "once in each epoch"
    return Guard(SAMPLES, not wrong, once, wrong or once, wrong, diagnosis=lost or "")


def _world_size(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    processes = [
        (life.world_size, asked)
        for rank in ranks
        for life, asked in zip(rank.lives or (rank,), case.world_sizes, strict=False)
    ]
    asked = next((asked for reached, asked in processes if (reached or 1) != asked), case.world_size)
    sizes = _sizes([reached or 1 for reached, of_life in processes if of_life == asked])
    return Guard(
        "world size reached",
        sizes == str(asked),
        str(asked),
        sizes,
        f"the trainer has world size {sizes} instead of {asked}; initialise the process group in every rank",
        # Ranks may meet without torch.distributed's own groups.
        "exchange" if all(reached in (None, size) for reached, size in processes) else "guard",
    )


def _collectives(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Where no step was seen, it is not known when training began."""
    silent = [rank.outcome.rank for rank in ranks if rank.attempts and not rank.trained_collectively]
    others = sorted({op for rank in ranks if rank.outcome.rank in silent for op in rank.collectives})
    text = f"{named(silent)} took part in no collective or message that could average gradients while training"
    if others:
        text += f", only in {', '.join(op.strip('_') for op in others)}"
    return replace(on_every_rank(COLLECTIVES, silent, text), ground="exchange")


def _contributed(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    without = gave_nothing(case, ranks)
    text = f"{named(without)} put only zeros into every exchange of gradients; every rank must contribute its own"
    return on_every_rank("gradients contributed", without, text)


def _exchanged(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    own = [rank.outcome.rank for rank in ranks if not rank.took_gradients]
    text = f"{named(own)} never exchanged gradients: the optimizer saw only those of the rank's own backwards"
    return on_every_rank("gradients from elsewhere", own, text)


def _copies(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    expected, apart = "the same on all ranks", copies_apart(case, ranks)
    return Guard("copies at the end", apart is None, expected, apart or expected, apart or "")


def _shards(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    expected = "no two ranks train on the same"
    if (apart := in_orders_of_their_own(case, ranks)) is not None:
        resumed = resumed_in_other_order(case, ranks)
        return not_held(SHARDS, expected, resumed or apart, diagnosis=OTHER_ORDER if resumed else OWN_ORDERS)
    if (found := redundant(case, ranks)) is None:
        return Guard(SHARDS, True, expected, expected, "")
    if (left := left_over(case, ranks, found.window, repeats=True)) is not None:
        return adds_to(*left)
    text, lost = found.text, None
    if case.resumed_at is not None and found.window >= case.resumed_at:
        # Who has lost the position between two windows reads what seems to be another rank's, where samples are equal.
        lost = between_windows(case, ranks)
        text = lost or text
    diagnosis = POSITION if lost else ""
    ground: Ground = "guard" if found.always else "samples"
    return Guard(SHARDS, False, expected, text, text, ground, diagnosis)


def _goes_on(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    lost = lost_place(case, ranks)
    diagnosis = OTHER_ORDER if in_first_epoch(case, ranks) else POSITION
    asked = f"window {case.resumed_at}"
    return Guard(PLACE, not lost, asked, lost or "", lost or "", diagnosis=diagnosis if lost else "")


def _restores_scale(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    lost = other_scale(ranks)
    return Guard("resumed at the same loss scale", not lost, "as without a stop", lost or "", lost or "")


def _step_count(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """One attempt per window. A last window that is short or uneven may be dropped, and one whose loss is infinite may
    be left out on all ranks; skips of a custom scaler are not recorded. Steps that only the weights show are more than
    the changes, where these come late or are none."""
    windows = case.problem.windows
    tried = {attempt.window for rank in ranks for attempt in rank.attempts}
    left_out = [one for one in windows if one.index not in tried and any(map(has_infinite_loss, one.batch))]
    fewest = len(must_step(case.problem)) - len(left_out)
    unseen = case.arithmetic.scaled and all(attempt.scale is None for rank in ranks for attempt in rank.attempts)
    unseen |= all(rank.attempts and rank.steps_by_hand for rank in ranks)
    counts = sorted({len(rank.attempts) for rank in ranks})
    until_stop = {len(rank.lives[0].attempts) for rank in ranks if rank.lives}
    lost = unread(case, ranks) if counts[0] < len(windows) else None
    diagnosis = LEFT_OUT if lost else ""
    return Guard(
        "optimizer steps tried",
        len(counts) == 1 and (1 if unseen else fewest) <= counts[0] <= len(windows),
        f"{len(windows)}, one per accumulation window",
        ", ".join(map(str, counts)),
        _other_count(counts, len(windows))
        + ("; the ranks must agree" if len(counts) > 1 else "")
        + (f"; {lost}" if lost else ""),
        "samples",
        diagnosis=POSITION if until_stop == {case.resumed_at} else diagnosis,
    )


def _other_count(counts: Sequence[int], asked: int) -> str:
    return f"{' or '.join(map(str, counts))} optimizer steps instead of {asked}, one per accumulation window"


def _moved(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    start_of = case.problem.workload.start_of
    still = [
        rank.outcome.rank
        for rank in ranks
        if rank.steps and all(tuple(map(exactly, step.weights)) == start_of(rank.outcome.rank) for step in rank.steps)
    ]
    text = f"the weights of {named(still)} never changed"
    seen = [step.gradients for rank in ranks if rank.outcome.rank in still for step in rank.steps]
    taken = [event for rank in ranks if rank.outcome.rank in still for event in rank.events.of(Step)]
    if any(event.of_replaced for event in taken):
        text += (
            "; the optimizer was made before the parameters were sharded, and holds those that the model had then: "
            "make it after `fully_shard`"
        )
    elif all(gradients is not None and set(gradients) == {None} for gradients in seen):
        text += (
            f"; {without_gradients(ranks)}"
            if any(rank.shard is not None for rank in ranks)
            else "; the parameters that the optimizer holds had a gradient in none of its steps, so the losses are "
            "those of others, such as a copy's: wrap, run and step one and the same model"
        )
    return on_every_rank("weights moved", still, text)


def _left_alone(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Weights must not change in a skipped window. Elsewhere numbers show whether a change was a step of some kind."""
    skipped = []
    for rank in ranks:
        before: Vector = tuple(map(float, case.problem.workload.start_of(0)))
        for attempt in rank.attempts:
            if not attempt.stepped and not same(attempt.weights, before):
                skipped.append(f"rank {rank.outcome.rank}, skipped window {attempt.window}")
            before = attempt.weights
    changed = [*skipped, *(change for rank in ranks for change in rank.changes)]
    if len(changed) > _MOST_NAMED:
        changed[_MOST_NAMED:] = [f"and {len(changed) - _MOST_NAMED} more"]
    return Guard(
        WEIGHTS,
        not changed,
        "nowhere else",
        "nowhere else" if not changed else "; ".join(changed),
        f"the weights are not those that the optimizer's steps have left: {'; '.join(changed)}",
        "guard" if skipped else "explanation",
        diagnosis="weights changed beside the steps",
    )


def _sizes(reached: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(set(reached))))
