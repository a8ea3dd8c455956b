"""What must hold before equal numbers mean anything: world size, shards, number of steps, weights that change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isclose

from conformance.adapter.backends import BACKENDS
from conformance.cases.case import Case
from conformance.oracle.accepted_readings import must_step
from conformance.oracle.recurrence import Trajectory
from conformance.results.records import Vector
from conformance.trace.events import Collective, Finished, Start, StateInit, Step
from conformance.trace.words import enumerated, number
from conformance.verdict.comparison import Difference, other_than, outside, same
from conformance.verdict.evidence import RankEvidence, exactly, named, values
from conformance.verdict.idle_steps import idle_after
from conformance.verdict.left_over import left_over
from conformance.verdict.orders import in_first_order, in_orders_of_their_own, resumed_in_other_order
from conformance.verdict.own_order import each_rank_reads_all, not_once
from conformance.verdict.resuming import (
    between_windows,
    left_behind,
    lost_place,
    other_gradients,
    other_scale,
    other_state,
    other_weights,
)
from conformance.verdict.shards import copies_apart, kept_over_step, split_apart, without_gradients
from conformance.verdict.work import gave_nothing, redundant, unread
from conformance.workloads.outliers import has_infinite_loss

SHARDS = "shards differ"
SAMPLES = "all samples read"
PLACE = "resumed at the next window"
RESTORED = "resumed as it was stopped"
WEIGHTS = "weights change in steps only"
MULTIPLE = "gradients of each window"
PARAMETERS = "each parameter"
BUFFERS = "buffers of the model"
COLLECTIVES = "collectives while training"
LOSS = "precision of the loss"
DRAWS = "random numbers after the resume"
AVERAGES = "averages of weights after the resume"
_MOST_NAMED = 3


@dataclass(frozen=True)
class Guard:
    """``text`` is the headline if the guard does not hold. ``may_be_unseen``: what it asks for may leave no trace, so
    that right numbers can make up for it. ``gives_way``: it says nothing against right numbers. ``may_be_setup``: wrong
    numbers may come of the rows that the adapter reads.
    """

    name: str
    holds: bool
    expected: str
    observed: str
    text: str
    may_be_unseen: bool = False
    gives_way: bool = False
    may_be_setup: bool = False


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


def _on_every_rank(name: str, without: Sequence[int], text: str) -> Guard:
    """A guard that holds if no rank is ``without`` what it asks for."""
    everywhere = "on every rank"
    return Guard(name, not without, everywhere, f"not on {named(without)}" if without else everywhere, text)


def _stepped(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    without = [rank.outcome.rank for rank in ranks if not rank.attempts]
    other = next((rank.other_optimizer for rank in ranks if rank.other_optimizer), None)
    text = f"{named(without)} never stepped the task's model; call optimizer.step() on its parameters"
    if other and any(rank.shard is not None for rank in ranks):
        text = (
            f"the shards of {named(without)} never changed: the optimizer stepped others, of shape {other['shapes']}, "
            "such as copies; make it of what `model.parameters()` gives after `fully_shard`, or write back what it has "
            "stepped"
        )
    elif other:
        text = (
            f"{named(without)} stepped parameters of shape {other['shapes']}, which are not the task's model; "
            "train the module that task.model() returns, or report its weights with task.report"
        )
    return _on_every_rank("optimizer steps seen", without, text)


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
    if wrong and too_many and not each_rank_reads_all(case):
        wrong = _other_count(counts, case.problem.workload.steps)
    return Guard(SAMPLES, not wrong, "once in each epoch", wrong or "once in each epoch", wrong)


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
        may_be_unseen=all(reached in (None, size) for reached, size in processes),
    )


def _collectives(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    """Where no step was seen, it is not known when training began."""
    silent = [rank.outcome.rank for rank in ranks if rank.attempts and not rank.trained_collectively]
    others = sorted({op for rank in ranks if rank.outcome.rank in silent for op in rank.collectives})
    text = f"{named(silent)} took part in no collective or message that could average gradients while training"
    if others:
        text += f", only in {', '.join(op.strip('_') for op in others)}"
    return replace(_on_every_rank(COLLECTIVES, silent, text), may_be_unseen=True)


def _contributed(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    without = gave_nothing(case, ranks)
    text = f"{named(without)} put only zeros into every exchange of gradients; every rank must contribute its own"
    return _on_every_rank("gradients contributed", without, text)


def _exchanged(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    own = [rank.outcome.rank for rank in ranks if not rank.took_gradients]
    text = f"{named(own)} never exchanged gradients: the optimizer saw only those of the rank's own backwards"
    return _on_every_rank("gradients from elsewhere", own, text)


def _copies(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    expected, apart = "the same on all ranks", copies_apart(case, ranks)
    return Guard("copies at the end", apart is None, expected, apart or expected, apart or "")


def _shards(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    expected = "no two ranks train on the same"
    if (apart := in_orders_of_their_own(case, ranks)) is not None:
        apart = resumed_in_other_order(case, ranks) or apart
        return Guard(SHARDS, False, expected, apart, apart)
    if (found := redundant(case, ranks)) is None:
        return Guard(SHARDS, True, expected, expected, "")
    if (left := left_over(case, ranks, found.window, repeats=True)) is not None:
        return _adds_to(left)
    return Guard(SHARDS, False, expected, found.text, found.text, may_be_setup=not found.always)


def _adds_to(left: str, *, gives_way: bool = False) -> Guard:
    return Guard("gradients of no window", False, "none", left, left, gives_way=gives_way)


def _goes_on(case: Case, ranks: Sequence[RankEvidence]) -> Guard:
    lost = lost_place(case, ranks)
    return Guard(PLACE, not lost, f"window {case.resumed_at}", lost or "", lost or "")


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
    return Guard(
        "optimizer steps tried",
        len(counts) == 1 and (1 if unseen else fewest) <= counts[0] <= len(windows),
        f"{len(windows)}, one per accumulation window",
        ", ".join(map(str, counts)),
        _other_count(counts, len(windows))
        + ("; the ranks must agree" if len(counts) > 1 else "")
        + (f"; {lost}" if counts[0] < len(windows) and (lost := unread(case, ranks)) else ""),
        may_be_setup=True,
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
    return _on_every_rank("weights moved", still, text)


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
        gives_way=not skipped,
    )


def first_wrong(case: Case, ranks: Sequence[RankEvidence], difference: Difference, right: Trajectory) -> Guard | None:
    """What the first wrong number shows by itself: weights that changed before training, samples that were never read,
    a parameter without a gradient on any rank, a gradient that is a multiple of the right one, a step at another
    learning rate, or weights that were right when the optimizer's step was over."""
    early = _changed_early(case, ranks) if difference.step == 0 else None
    if early is not None:
        return early
    if case.resumed_at is not None and right.steps[difference.step].window >= case.resumed_at:
        model, is_missing = case.problem.workload.model, difference.observed is None
        other = other_weights(ranks) or other_gradients(case, ranks)
        other = other or (left_behind(model, ranks) if is_missing else None) or other_state(model, ranks)
        if other is not None:
            return Guard(RESTORED, False, "on every rank", other, other, gives_way=True)
    kept = kept_over_step(ranks[difference.rank], difference.step)
    if kept is not None:
        return Guard(
            "forwards use what was stepped", False, "in each window", "what was gathered before", kept, gives_way=True
        )
    left = left_over(case, ranks, right.steps[difference.step].window)
    if left is not None:
        return _adds_to(left, gives_way=True)
    order = in_first_order(case, ranks) or resumed_in_other_order(case, ranks)
    if order is not None:
        return Guard("order of each epoch", False, "another one", "that of another one", order, gives_way=True)
    if (off := between_windows(case, ranks)) is not None:
        return Guard(PLACE, False, f"window {case.resumed_at}", off, off, gives_way=True)
    lost = unread(case, ranks)
    if lost is not None:
        text = f"{lost}; each sample must be trained on once in an epoch"
        return Guard(SAMPLES, False, "in each epoch", lost, text, gives_way=True)
    if difference.quantity == "gradient":
        if difference.observed is None:
            return _stepped_in_part(case, ranks, difference)
        rank = ranks[difference.rank]
        return _multiplied(case, rank, difference, right) or _wrong_in_part(case, rank, difference, right)
    taken, expected = ranks[difference.rank].taken(difference.step), right.steps[difference.step]
    if taken is None:
        return _wrong_in_part(case, ranks[difference.rank], difference, right)
    rate, asked = taken.lr, _rate(case, difference.step, right)
    if rate is not None and asked is not None and not isclose(float(rate), asked, rel_tol=1e-6):
        window, seen = expected.window, number(float(rate))
        return Guard(
            "learning rate of each step",
            False,
            f"{number(asked)} in window {window}",
            seen,
            f"the step of window {window} has the learning rate {seen}, and not {number(asked)}",
            gives_way=True,
        )
    if taken.weights is None or outside(expected.weights, values(taken.weights)) is not None:
        return _wrong_in_part(case, ranks[difference.rank], difference, right)
    return Guard(
        "weights stay as they are stepped",
        False,
        "until the next step",
        f"rank {difference.rank}, after the step of window {expected.window}",
        f"the optimizer's step of window {expected.window} is right, but after it the weights of rank "
        f"{difference.rank} become others; only steps may change them",
        gives_way=True,
    )


def _changed_early(case: Case, ranks: Sequence[RankEvidence]) -> Guard | None:
    apart = split_apart(case, ranks)
    if apart is not None:
        return Guard(WEIGHTS, False, "not before training", "before training", apart, gives_way=True)
    return _stepped_early(case, ranks) or _reduced_early(case, ranks)


def _stepped_early(case: Case, ranks: Sequence[RankEvidence]) -> Guard | None:
    for rank in ranks:
        planned = [float(value) for value in case.problem.workload.start_of(rank.outcome.rank)]
        for event in rank.events.of(StateInit):
            if event.weights and other_than([planned], event.weights):
                at = " ({}:{})".format(*event.where) if event.where else ""
                return Guard(
                    WEIGHTS,
                    False,
                    "not before training",
                    f"rank {rank.outcome.rank}, before training",
                    f"a step with gradients of zero changed the weights before training{at}: it decays them, and "
                    "AdamW counts it; so with the one by which Horovod's `broadcast_optimizer_state` makes the state "
                    "of a new optimizer",
                    gives_way=True,
                )
    return None


def _reduced_early(case: Case, ranks: Sequence[RankEvidence]) -> Guard | None:
    """Weights that ranks have reduced before training, to neither the mean of the task's nor those of one rank."""
    starts = [[float(value) for value in case.problem.workload.start_of(rank)] for rank in range(case.world_size)]
    mean = [sum(column) / len(starts) for column in zip(*starts, strict=True)]
    for rank in ranks:
        begun = next(iter(rank.events.of(Start)), None)
        before = rank.events.of(Collective, before=begun)
        reduced = [event for event in before if event.of == "parameters" and event.reduce]
        if begun is None or not begun.weights or not reduced:
            continue
        other = other_than([mean], begun.weights)
        if other and all(other_than([start], begun.weights) for start in starts):
            at = " ({}:{})".format(*reduced[-1].where) if reduced[-1].where else ""
            return Guard(
                WEIGHTS,
                False,
                "not before training",
                f"rank {rank.outcome.rank}, before training",
                f"before training the ranks reduced their weights{at}, of which one became {number(other[0])} in place "
                f"of {number(other[1])}: divide a sum by the number of ranks, or broadcast the weights of one rank",
                gives_way=True,
            )
    return None


def _rate(case: Case, step: int, right: Trajectory) -> float | None:
    """The learning rate that a step must have; None where parameters have several, or a skipped step leaves it open."""
    workload = case.problem.workload
    if workload.groups or right.skips:
        return None
    if workload.schedule_by == "epoch":
        step = next(one.epoch for one in case.problem.windows if one.index == right.steps[step].window)
    return float(workload.optimizer.lr * (workload.schedule[step] if workload.schedule else 1))


def _stepped_in_part(case: Case, ranks: Sequence[RankEvidence], difference: Difference) -> Guard | None:
    at = [rank.steps[difference.step].gradients for rank in ranks if difference.step < len(rank.steps)]
    model = case.problem.workload.model
    without = {
        tensor
        for index, tensor in enumerate(model.tensor_of)
        if all(gradients is not None and gradients[index : index + 1] == (None,) for gradients in at)
    }
    if not without:
        return None
    names = enumerated([model.tensors[tensor].name for tensor in sorted(without)])
    window = ranks[difference.rank].steps[difference.step].window
    return Guard(
        "all parameters stepped",
        False,
        "in each window",
        f"not {names} in window {window}",
        f"{names} had no gradient in the step of window {window}, or no optimizer that stepped; what the forwards use "
        "must be stepped in each window, by an optimizer that holds it",
        gives_way=True,
    )


def _multiplied(case: Case, rank: RankEvidence, difference: Difference, right: Trajectory) -> Guard | None:
    """A window whose gradient is a multiple of the right one, after others that are right."""
    step = right.steps[difference.step]
    seen = map(exactly, rank.steps[difference.step].gradients or ())
    pairs = [(one, two) for one, two in zip(seen, step.gradient.center, strict=False) if one != 0 or two]
    ratios = [one / two for one, two in pairs if one and two]
    if difference.step == 0 or not 1 < len(ratios) == len(pairs):
        return None
    least, most = min(ratios), max(ratios)
    times = least.limit_denominator(1024)
    if times <= 0 or most - least > least / 64 or abs(least - 1) < Fraction(1, 16):
        return None
    said = times if times.denominator <= 64 else f"{float(least):.3g}"
    text = (
        f"the gradients of window {step.window} are {said} times the right ones in every element, and those of the "
        "windows before are right"
    )
    if case.arithmetic.scaled and max(times, 1 / times).numerator.bit_count() == 1:
        text += "; a loss scale that changes must be divided out as it was when the loss was multiplied by it"
    return Guard(MULTIPLE, False, "right", f"{said} times the right ones", text, gives_way=True)


def _wrong_in_part(case: Case, rank: RankEvidence, difference: Difference, right: Trajectory) -> Guard | None:
    """Some parameters of many whose numbers alone are wrong."""
    step, own, model = right.steps[difference.step], rank.steps[difference.step], case.problem.workload.model
    is_gradient = difference.quantity == "gradient"
    box, seen = (step.gradient, own.gradients or ()) if is_gradient else (step.weights, own.weights)
    numbers = zip(model.is_used, model.tensor_of, box.center, box.radius, map(exactly, seen), strict=False)
    elements = [
        (tensor, is_used)
        for is_used, tensor, center, radius, value in numbers
        if value is None or abs(value - center) > radius
    ]
    wrong = {tensor for tensor, _ in elements}
    # Of two parameters, one may be right by chance.
    if not wrong or 2 * len(wrong) >= len(model.tensors):
        return None
    names = enumerated([model.tensors[tensor].name for tensor in sorted(wrong)])
    what, when = ("the gradient of ", "in") if is_gradient else ("", "after")
    are = "is" if is_gradient or len(wrong) == 1 else "are"
    text = f"{what}{names} {are} wrong {when} window {step.window}, and all other parameters are right"
    if not any(is_used for _, is_used in elements):
        text += "; only elements are wrong that the model does not use, and whose gradients are zero"
    if all(model.tensors[tensor].places > 1 for tensor in wrong):
        text += f"; the model uses {names} in several places, and it is one parameter for all that"
    return Guard(PARAMETERS, False, "right", f"not of {names}", text, gives_way=True)


def _sizes(reached: Sequence[int]) -> str:
    return " or ".join(map(str, sorted(set(reached))))
