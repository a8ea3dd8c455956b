"""The evidence of a case: what each rank's attempts are, from all that shows them.

An optimizer's events show an attempt. Where there are none, as with a functional update, an optimizer that is none of
torch's, fp32 master weights that are copied back, shards that ranks exchange after a step, or a parameter server, the
next window's first forward uses what came of it. Some values only another rank has, and some only the trainer reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.laws.run import Rank, Run
from conformance.results.records import Vector
from conformance.runner.outcome import Outcome, RankOutcome
from conformance.trace import events as trace
from conformance.trace.events import Forward, ScalerStep, Start
from conformance.trace.lives import Events, by_life, lives
from conformance.verdict.comparison import same
from conformance.verdict.evidence import Attempt, RankEvidence, overlaid, read, shown_by, values
from conformance.verdict.reported import with_reports
from conformance.workloads.layout import Window


def evidence(case: Case, outcome: Outcome, runs: Sequence[Run]) -> tuple[RankEvidence, ...]:
    """What each rank did; ``runs``: one for each life, or the only one. Each life is read by itself, as all that a
    process counts begins anew in it."""
    parts = by_life(case.spec(), [rank.events for rank in outcome.ranks])
    found = [
        of_life([_read(case, rank, own, number) for rank, own in zip(outcome.ranks, life, strict=False)], run)
        for number, ((_, life), run) in enumerate(zip(parts, runs, strict=True))
    ]
    ranks = found[0]
    if len(found) > 1:
        ranks = [
            _joined(rank, [life[at] if at < len(life) else _in_place_of_none(life[0]) for life in found])
            for at, rank in enumerate(outcome.ranks)
        ]
    return _with_idle_windows(with_reports(case, ranks, runs), case.problem.windows)


def of_life(ranks: Sequence[RankEvidence], run: Run) -> list[RankEvidence]:
    """The ranks of one life, with the weights that came of each window as its attempt's, and with attempts for ranks
    that never step an optimizer of torch's.

    Where the only rank that steps serves the others, those get its gradients and loss scales, which changed their
    weights. They see nothing of earlier steps in a window, which a right server does not make.
    """
    served = () if run.server is None else [_of_another(attempt) for attempt in ranks[run.server].attempts]
    stepped = {attempt.seen_in: attempt for rank in ranks for attempt in rank.steps}
    # The windows that all ranks with an optimizer of torch's skipped: those without one had nothing to step.
    skipped = {attempt.seen_in for rank in ranks for attempt in rank.attempts} - stepped.keys()
    shown = [
        _shown(rank, own, rank.attempts or served, stepped, skipped) for rank, own in zip(ranks, run.ranks, strict=True)
    ]
    attempts = [attempt for of_rank, _ in shown for attempt in of_rank]
    return [
        replace(rank, attempts=tuple(_with_gradients(rank, own, attempts)), changes=tuple(changes))
        for rank, (own, changes) in zip(ranks, shown, strict=True)
    ]


def _of_another(attempt: Attempt) -> Attempt:
    """An attempt of the rank that steps for this one."""
    return replace(attempt, weights_by="another rank", gradients_by="another rank")


def _as_shown(attempt: Attempt, weights: Vector) -> Attempt:
    """With the weights that this rank has afterwards."""
    return replace(attempt, weights=weights, weights_by="shown")


def _shown(
    rank: RankEvidence,
    seen: Rank,
    attempts: Sequence[Attempt],
    elsewhere: Mapping[int | None, Attempt],
    skipped: Set[int | None],
) -> tuple[list[Attempt], list[str]]:
    """The attempts of a rank with the weights that forwards show, and where weights changed outside of them.

    ``attempts``: those that optimizers' events show; ``elsewhere``: the steps of all ranks.
    """
    shown = {window.number: shown_by(window.shown_after) for window in seen.windows}
    held = {window: weights for window, weights in shown.items() if weights is not None}
    if seen.shard is not None:
        # What a rank has gathered shows no step that came later.
        used = {window.number: shown_by(next(iter(window.forwards), None)) for window in seen.windows}
        held = {window: weights for window, weights in held.items() if weights != used[window]}
    attempted = {attempt.seen_in for attempt in attempts}
    within = list(_within(rank))
    by_hand = [] if any(one.stepped for one in attempts) else [*_by_hand(seen, held, skipped - attempted, elsewhere)]
    if by_hand:
        return _in_order(*attempts, *by_hand), within
    if rank.attempts:
        attempts = _in_order(*attempts, *_sent(seen, held, elsewhere))
    last = {attempt.seen_in: attempt for attempt in attempts}
    moved = {
        window
        for window, attempt in last.items()
        if rank.attempts and attempt.stepped and window in held and not same(held[window], attempt.weights)
    }
    exchanged = moved & _exchanged(rank, len(rank.attempts[0].weights)) if moved else set[int | None]()
    # As where a step ends in code of the trainer's own, or ranks send one another what they have stepped.
    by_design = moved if len(moved) == len(last) > 1 else exchanged

    def after(attempt: Attempt) -> Attempt:
        if attempt is not last[attempt.seen_in] or attempt.seen_in not in held:
            return attempt
        # Ranks that average weights after their steps average the gradients of these steps, too.
        is_local = attempt.seen_in in exchanged and None not in (attempt.gradients or (None,))
        gradients = None if is_local else attempt.gradients
        return _as_shown(replace(attempt, gradients=gradients), held[attempt.seen_in])

    changes = [
        f"rank {rank.outcome.rank}, after the step of window {number}"
        + _still(seen, attempts, last[number], held[number])
        for number in sorted(moved - by_design, key=str)
    ]
    return [after(one) for one in attempts if rank.attempts or one.seen_in in held], within + changes


def _in_order(*attempts: Attempt) -> list[Attempt]:
    return sorted(attempts, key=lambda attempt: attempt.window)


def _still(seen: Rank, attempts: Sequence[Attempt], attempt: Attempt, shown: Vector) -> str:
    """Says so if what is ``shown`` after a step are weights from before it, where that has moved them."""
    at = attempts.index(attempt)
    starts = [values(start.weights) for start in seen.of(Start) if start.weights]
    before = attempts[at - 1].weights if at else starts[0] if starts else (None,) * len(shown)
    moved = [(old, now) for old, new, now in zip(before, attempt.weights, shown, strict=True) if new != now]
    return ", which are still those from before it" if all(old == now for old, now in moved) else ""


def _with_gradients(rank: RankEvidence, own: Sequence[Attempt], attempts: Sequence[Attempt]) -> Iterator[Attempt]:
    """The rank's ``own`` attempts, with the gradients of parameters that other ranks step for it."""
    size = max((len(attempt.weights) for attempt in own), default=0)
    is_partial = any(attempt.gradients is not None and None in attempt.gradients for attempt in own)
    exchanged = _exchanged(rank, size) if is_partial else set()
    for attempt in own:
        gradients = attempt.gradients
        if gradients is not None and None in gradients and attempt.seen_in in exchanged:
            beside = [one.gradients for one in attempts if one.seen_in == attempt.seen_in and one.gradients is not None]
            yield replace(attempt, gradients=overlaid([gradients, *beside]), gradients_by="another rank")
        else:
            yield attempt


def _exchanged(rank: RankEvidence, size: int) -> set[int | None]:
    """The windows after whose step ranks exchanged what may be weights, which are of this size."""
    stepped: int | None = None
    found = set[int | None]()
    for event in rank.events.events:
        if isinstance(event, trace.Attempt):
            stepped = event.window
        elif isinstance(event, Forward) and not event.extra:
            stepped = None
        elif stepped is not None and _may_carry_weights(event, size):
            found.add(stepped)
    return found


def _may_carry_weights(event: trace.Event, size: int) -> bool:
    if not isinstance(event, trace.Collective | trace.Receive):
        return False
    return event.of == "parameters" or (event.of is None and event.elements >= size)


def _by_hand(
    rank: Rank, held: Mapping[int, Vector], skipped: Collection[int | None], elsewhere: Collection[int | None]
) -> Iterator[Attempt]:
    """An attempt for each window whose weights came out other than they went in, or that the ranks that step skipped:
    another one that is skipped leaves no trace, unless a GradScaler has skipped it. A rank that owns nothing is to get
    what others have stepped ``elsewhere``."""
    for window in rank.windows:
        number, before = window.number, shown_by(next(iter(window.forwards), None))
        if before is None or number not in held:
            continue
        has_moved = not same(held[number], before) or (rank.owns_nothing and number in elsewhere)
        if has_moved or number in skipped:
            scales = [float(step.scale) for step in window.of(ScalerStep)]
            scale = scales[-1] if scales else None
            yield Attempt(number, number, has_moved, None, held[number], scale, weights_by="shown")


def _sent(rank: Rank, held: Mapping[int, Vector], elsewhere: Mapping[int | None, Attempt]) -> Iterator[Attempt]:
    """The attempt of another rank for each window that this one does not step, and whose weights it is sent."""
    for window in rank.windows:
        number = window.number
        if not window.attempts and window.step_is_unseen and number in held and number in elsewhere:
            yield _as_shown(_of_another(elsewhere[number]), held[number])


def _within(rank: RankEvidence) -> Iterator[str]:
    """Where weights changed between two forwards of a window, and no step of an optimizer of torch's changed them."""
    window: int | None = None
    has_stepped = False
    before: Sequence[Any] = ()
    for event in rank.events.events:
        has_stepped |= isinstance(event, trace.Attempt)
        if isinstance(event, Forward) and not event.extra:
            shown = event.weights
            if shown is not None and event.window == window and not has_stepped and _differ(before, shown):
                yield f"rank {rank.outcome.rank}, window {window}, before micro-batch {event.micro_batch}"
            before = before if shown is None else shown
            window, has_stepped = event.window, False


def _differ(before: Sequence[Any], shown: Sequence[Any]) -> bool:
    """Whether a weight that was seen is seen to be another. One that is gathered only later was not seen before."""
    return any(None not in pair and pair[0] != pair[1] for pair in zip(before, shown, strict=True))


def _in_place_of_none(first: RankEvidence) -> RankEvidence:
    """What stands for a rank in a life that does not have it: the numbers of the first rank, which are those of all."""
    return replace(first, trained=first.trained and {}, changes=())


def _read(case: Case, rank: RankOutcome, events: Events, life: int) -> RankEvidence:
    windows = case.problem.windows_of_lives[life if case.problem.resumed_layout else 0]
    if life:
        # It may go on elsewhere than it should.
        first = next((event["window"] for event in events if event["window"] is not None), case.resumed_at)
        windows = windows[first:]
    elif case.resumed_at is not None:
        windows = windows[: case.resumed_at + bool(case.resumed_inside)]
    found = read(replace(rank, events=events), windows)
    if not any(tensor.frozen or tensor.block is not None for tensor in case.problem.workload.model.tensors):
        return found
    return replace(found, attempts=tuple(_with_missing(case, attempt) for attempt in found.attempts))


def _with_missing(case: Case, attempt: Attempt) -> Attempt:
    """With gradients of zero for the parameters that may have none: those that are frozen, or not used."""
    workload, windows = case.problem.workload, case.problem.windows
    # Who steps more often than there are windows has steps that no batch is known for.
    if attempt.gradients is None or attempt.window >= len(windows):
        return attempt
    batch = windows[attempt.window].batch
    needed = [
        workload.trains(tensor, attempt.window) and workload.uses(tensor, batch)
        for tensor in range(len(workload.model.tensors))
    ]
    gradients = tuple(
        0.0 if seen is None and not needed[tensor] else seen
        for tensor, seen in zip(workload.model.tensor_of, attempt.gradients, strict=True)
    )
    return replace(attempt, gradients=gradients)


def _joined(rank: RankOutcome, parts: Sequence[RankEvidence]) -> RankEvidence:
    return replace(
        parts[-1],
        outcome=rank,
        attempts=tuple(attempt for part in parts for attempt in part.attempts),
        updates=tuple(update for part in parts for update in part.updates),
        trained=_united([part.trained for part in parts]),
        changes=tuple(change for part in parts for change in part.changes),
        lives=tuple(parts),
    )


def _united(trained: Sequence[Mapping[int, frozenset[int]] | None]) -> dict[int, frozenset[int]] | None:
    known = [one for one in trained if one is not None]
    if len(known) < len(trained):
        return None
    return {window: frozenset().union(*(one.get(window, ()) for one in known)) for one in known for window in one}


def _with_idle_windows(ranks: Sequence[RankEvidence], windows: Sequence[Window]) -> tuple[RankEvidence, ...]:
    """The ranks, with attempts for the windows in which they have run out of data and take no step: those of the ranks
    that go on, with the weights that they begin the next epoch or end with, and without a loss scale, which they need
    none of."""
    idle = [[one for window in windows for one in _served(rank, ranks, window, windows)] for rank in ranks]
    return tuple(
        replace(rank, attempts=tuple(_in_order(*rank.attempts, *served))) if served else rank
        for rank, served in zip(ranks, idle, strict=True)
    )


def _served(
    rank: RankEvidence, ranks: Sequence[RankEvidence], window: Window, windows: Sequence[Window]
) -> Iterator[Attempt]:
    number, taken = rank.outcome.rank, {attempt.window for attempt in rank.attempts}
    others = {attempt.window: attempt for other in ranks for attempt in other.attempts if attempt.window not in taken}
    weights = _weights_after(rank, window)
    # A rank that is not there in a life of the run has not run out of data.
    if number >= window.world_size or window.shares[number] or window.index not in others or weights is None:
        return
    # Only a next forward shows what came of a step without an optimizer of torch's. What a rank ends with counts.
    own = max(one.index for one in windows if one.index < window.index and one.shares[number])
    if own in others and rank.steps_by_hand:
        yield _of_another(others[own])
    yield _as_shown(replace(_of_another(others[window.index]), scale=None), weights)


def _weights_after(rank: RankEvidence, window: Window) -> Vector | None:
    """The weights with which a rank goes on after a window in which it has no samples."""
    forwards = (event for event in rank.events.of(trace.Forward) if (event.window or 0) > window.index)
    return next((values(event.weights) for event in forwards if event.weights), rank.final_weights)


def as_it_ran(case: Case, outcome: Outcome) -> Case:
    """The case; of one that is killed between two files, with the checkpoint that it goes on from, or with no stop if
    its checkpoints are one file."""
    first, *others = lives(case.resumed_at, outcome.ranks[0].events)
    windows = [event["window"] for event in first if event["window"] is not None]
    if case.resumed != BETWEEN_FILES:
        return replace(case, resumed_at=_stop_of_steps(case, first, windows))
    return replace(case, resumed_at=windows[-1] + 1 if windows else 0) if others else replace(case, resumed_at=None)


def _stop_of_steps(case: Case, first: Events, windows: Sequence[int]) -> int | None:
    """After how many windows training stopped, for a trainer that drops short ones and counts those that it steps; else
    as the case asks."""
    stop, planned = case.resumed_at, case.problem.windows
    short = {window.index for window in planned if window.length < window.nominal}
    whole = [window for window in dict.fromkeys(windows) if window not in short]
    asked = [window.index for window in planned if window.index not in short][:stop]
    stepped = {event["window"] for event in first if event["event"] in ("step", "skip")}
    return whole[-1] + 1 if stop is not None and whole == asked and not stepped & short else stop
