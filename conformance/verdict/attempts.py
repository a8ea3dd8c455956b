"""The evidence of a case: the attempts of each rank, from everything that shows them.

An optimizer's events show an attempt. Without them, the next window's first forward shows its result: for a functional
update, an optimizer that is not torch's, fp32 master weights that are copied back, shards that ranks exchange after a
step, or a parameter server. Some values only another rank has, and some only the trainer reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.laws import subjects
from conformance.laws.subjects import Rank, Run
from conformance.results.result_lines import Vector
from conformance.runner.outcome import Outcome, RankOutcome
from conformance.trace import events as trace
from conformance.trace.events import Forward, ScalerStep, Start
from conformance.trace.lives import Events, by_life, lives
from conformance.verdict.comparison import same
from conformance.verdict.evidence import Attempt, RankEvidence, overlaid, read, shown_by, values
from conformance.verdict.reported import with_reports
from conformance.workloads.layout import Window


def evidence(case: Case, outcome: Outcome, runs: Sequence[Run]) -> tuple[RankEvidence, ...]:
    """The evidence of each rank; ``runs``: one for each life. Each life is read separately, because all counters of a
    process restart in it."""
    parts = by_life(case.spec(), [rank.events for rank in outcome.ranks])
    lives = [
        of_life([_read(case, rank, own, number) for rank, own in zip(outcome.ranks, life, strict=False)], run)
        for number, ((_, life), run) in enumerate(zip(parts, runs, strict=True))
    ]
    ranks = lives[0]
    if len(lives) > 1:
        # A rank that does not exist in a life gets the numbers of the first rank, which all ranks share.
        absent = [replace(life[0], trained=life[0].trained and {}, changes=()) for life in lives]
        ranks = [
            _joined(rank, [life[at] if at < len(life) else none for life, none in zip(lives, absent, strict=True)])
            for at, rank in enumerate(outcome.ranks)
        ]
    told = [*map(_with_offered, with_reports(case, ranks, runs))]
    idle = [[one for window in case.problem.windows for one in _served(rank, told, window, case)] for rank in told]
    return tuple(
        replace(rank, attempts=_in_order(*rank.attempts, *served)) if served else rank
        for rank, served in zip(told, idle, strict=True)
    )


def _with_offered(rank: RankEvidence) -> RankEvidence:
    """The rank with the gradients that were offered to steps of tensors outside the model."""
    offered = {one.window: values(one.offered) for one in rank.events.of(trace.ForeignOptimizer) if one.offered}
    attempts = (replace(one, offered=offered.get(one.window, one.offered)) for one in rank.attempts)
    return replace(rank, attempts=tuple(attempts)) if offered else rank


def of_life(ranks: Sequence[RankEvidence], run: Run) -> list[RankEvidence]:
    """The ranks of one life, with the resulting weights of each window in its attempt, and with attempts for ranks that
    never step a torch optimizer.

    The workers of a parameter server get its gradients and loss scales, which changed their weights. They see no
    earlier steps in a window; a correct server takes none.
    """
    served = () if run.server is None else tuple(map(_of_another, ranks[run.server].attempts))
    stepped = {attempt.seen_in: attempt for rank in ranks for attempt in rank.steps}
    # The windows that all ranks with a torch optimizer skipped: the other ranks had nothing to step.
    skipped = {attempt.seen_in for rank in ranks for attempt in rank.attempts} - stepped.keys()
    shown = [
        _shown(rank, own, rank.attempts or served, stepped, skipped) for rank, own in zip(ranks, run.ranks, strict=True)
    ]
    attempts = [attempt for of_rank, _ in shown for attempt in of_rank]
    return [
        replace(rank, attempts=tuple(_with_gradients(rank, seen, own, attempts)), changes=(*_within(rank), *changes))
        for rank, seen, (own, changes) in zip(ranks, run.ranks, shown, strict=True)
    ]


def _in_order(*attempts: Attempt) -> tuple[Attempt, ...]:
    return tuple(sorted(attempts, key=lambda attempt: attempt.window))


def _of_another(attempt: Attempt) -> Attempt:
    """The attempt of the rank that steps for this one."""
    return replace(attempt, weights_by="another rank", gradients_by="another rank")


def _as_shown(attempt: Attempt, weights: Vector) -> Attempt:
    """The attempt with the weights that this rank has afterwards."""
    return replace(attempt, weights=weights, weights_by="shown")


def _shown(
    rank: RankEvidence,
    seen: Rank,
    attempts: Sequence[Attempt],
    elsewhere: Mapping[int | None, Attempt],
    skipped: Set[int | None],
) -> tuple[Sequence[Attempt], list[str]]:
    """The attempts of a rank with the weights that forwards show, and the changes of weights after them, in words.

    ``attempts``: those in optimizers' events; ``elsewhere``: the steps of all ranks.
    """
    used = {window.number: shown_by(next(iter(window.forwards), None)) for window in seen.windows}
    shown = {one.number: shown_by(one.shown_after) for one in seen.windows if not _keeps_a_copy(one, attempts)}
    held: dict[int | None, Vector] = {
        window: weights
        for window, weights in shown.items()
        # Gathered weights do not show later steps.
        if weights is not None and (seen.shard is None or weights != used[window])
    }
    attempted = {attempt.seen_in for attempt in attempts}
    by_hand = (
        [] if any(one.stepped for one in attempts) else [*_by_hand(seen, used, held, skipped - attempted, elsewhere)]
    )
    if by_hand:
        return _in_order(*attempts, *by_hand), []
    if rank.attempts:
        sent = [window.number for window in seen.windows if not window.attempts and window.step_is_unseen]
        others = [number for number in sent if number in held and number in elsewhere]
        attempts = _in_order(*attempts, *(_as_shown(_of_another(elsewhere[one]), held[one]) for one in others))
    last = {attempt.seen_in: attempt for attempt in attempts}
    moved = {
        window
        for window, attempt in last.items()
        if rank.attempts and attempt.stepped and window in held and not same(held[window], attempt.weights)
    }
    exchanged = moved & _exchanged(rank, len(rank.attempts[0].weights)) if moved else set[int | None]()
    # Such as a step that ends in the trainer's own code, or ranks that exchange stepped weights.
    by_design = moved if len(moved) == len(last) > 1 else exchanged

    def after(attempt: Attempt) -> Attempt:
        if attempt is not last[attempt.seen_in] or attempt.seen_in not in held:
            return attempt
        # Ranks that average weights after their steps also average the gradients of these steps.
        is_local = attempt.seen_in in exchanged and None not in (attempt.gradients or (None,))
        gradients = None if is_local else attempt.gradients
        return _as_shown(replace(attempt, gradients=gradients), held[attempt.seen_in])

    changes = [
        f"rank {rank.number}, after the step of window {number}" + _still(seen, attempts, last[number], held[number])
        for number in sorted(moved - by_design, key=str)
    ]
    return [after(one) for one in attempts if rank.attempts or one.seen_in in held], changes


def _still(seen: Rank, attempts: Sequence[Attempt], attempt: Attempt, shown: Vector) -> str:
    """A phrase if the weights ``shown`` after a step are those from before it, although it moved them; else ""."""
    at = attempts.index(attempt)
    before = attempts[at - 1].weights if at else next(_starts(seen), (None,) * len(shown))
    moved = [(old, now) for old, new, now in zip(before, attempt.weights, shown, strict=True) if new != now]
    return ", back to those from before it" if all(old == now for old, now in moved) else ""


def _keeps_a_copy(window: subjects.Window, attempts: Sequence[Attempt]) -> bool:
    """Whether the next forward is a functional call with weights from before this window's step: a copy of the
    trainer's, which is no change of the model."""
    event = window.shown_after
    if not attempts or not isinstance(event, Forward) or not event.replaced or not event.weights:
        return False
    earlier = [one.weights for one in attempts if one.seen_in is not None and one.seen_in < window.number]
    return any(same(values(event.weights), one) for one in (*_starts(window.rank), *earlier))


def _starts(seen: Rank) -> Iterator[Vector]:
    return (values(start.weights) for start in seen.of(Start) if start.weights)


def _with_gradients(
    rank: RankEvidence, seen: Rank, own: Sequence[Attempt], attempts: Sequence[Attempt]
) -> Iterator[Attempt]:
    """Yields the rank's ``own`` attempts, with the gradients of parameters that other ranks step for it."""
    size = max((len(attempt.weights) for attempt in own), default=0)
    is_partial = any(attempt.gradients is not None and None in attempt.gradients for attempt in own)
    exchanged = _exchanged(rank, size) if is_partial else set()
    exchanged |= {attempt.seen_in for attempt in own if seen.owns_nothing}
    for attempt in own:
        gradients = attempt.gradients
        if gradients is not None and None in gradients and attempt.seen_in in exchanged:
            others = [one.gradients for one in attempts if one.seen_in == attempt.seen_in and one.gradients is not None]
            yield replace(attempt, gradients=overlaid([gradients, *others]), gradients_by="another rank")
        else:
            yield attempt


def _exchanged(rank: RankEvidence, size: int) -> set[int | None]:
    """The windows after whose step ranks exchanged possible weights, which are of this size."""
    stepped: int | None = None
    found = set[int | None]()
    for event in rank.events.events:
        if isinstance(event, trace.Attempt):
            stepped = event.window
        elif isinstance(event, Forward) and not event.extra:
            stepped = None
        elif stepped is None or not isinstance(event, trace.Collective | trace.Receive):
            continue
        elif event.of == "parameters" or (event.of is None and event.elements >= size):
            found.add(stepped)
    return found


def _by_hand(
    rank: Rank,
    used: Mapping[int, Vector | None],
    held: Mapping[int | None, Vector],
    skipped: Collection[int | None],
    elsewhere: Collection[int | None],
) -> Iterator[Attempt]:
    """Yields an attempt for each window that changed the weights, or that the stepping ranks skipped. Other skips leave
    no trace without a GradScaler. A rank that owns nothing gets the weights that others stepped ``elsewhere``."""
    for window in rank.windows:
        number, before = window.number, used[window.number]
        if before is None or number not in held:
            continue
        has_moved = not same(held[number], before) or (rank.owns_nothing and number in elsewhere)
        if has_moved or number in skipped:
            scales = [float(step.scale) for step in window.of(ScalerStep)]
            scale = scales[-1] if scales else None
            own = (None,) * len(before) if rank.owns_nothing else None
            yield Attempt(number, number, has_moved, own, held[number], scale, weights_by="shown")


def _within(rank: RankEvidence) -> Iterator[str]:
    """Yields the places where weights changed between two forwards of a window without a step of a torch optimizer."""
    window: int | None = None
    has_stepped = False
    before: Sequence[Any] = ()
    for event in rank.events.events:
        has_stepped |= isinstance(event, trace.Attempt)
        if isinstance(event, Forward) and not event.extra:
            shown = event.weights
            # A weight that is gathered only later was unseen before.
            pairs = [] if shown is None or event.window != window or has_stepped else zip(before, shown, strict=True)
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                yield f"rank {rank.number}, window {window}, before micro-batch {event.micro_batch}"
            before = before if shown is None else shown
            window, has_stepped = event.window, False


def _read(case: Case, rank: RankOutcome, events: Events, life: int) -> RankEvidence:
    windows = case.problem.windows_of_lives[life if case.problem.resumed_layout else 0]
    if life:
        # It may resume at the wrong window.
        first = next((event["window"] for event in events if event["window"] is not None), case.resumed_at)
        windows = windows[first:]
    elif case.resumed_at is not None:
        windows = windows[: case.resumed_at + bool(case.resumed_inside)]
    found = read(replace(rank, events=events), windows)
    workload, planned = case.problem.workload, case.problem.windows
    optional = [at for at, tensor in enumerate(workload.model.tensors) if tensor.frozen or tensor.block is not None]
    if not optional:
        return found

    def filled(attempt: Attempt) -> Attempt:
        """The attempt with zero gradients for parameters that may have none: frozen or unused ones."""
        # Steps beyond the planned windows have no known batch.
        if attempt.window >= len(planned):
            return attempt
        batch = planned[attempt.window].batch
        without = {at for at in optional if not (workload.trains(at, attempt.window) and workload.uses(at, batch))}

        def full(gradients: Vector | None) -> Vector | None:
            pairs = zip(workload.model.tensor_of, gradients or (), strict=True)
            return gradients and tuple(0.0 if seen is None and at in without else seen for at, seen in pairs)

        return replace(attempt, gradients=full(attempt.gradients), offered=full(attempt.offered))

    return replace(found, attempts=tuple(map(filled, found.attempts)))


def _joined(rank: RankOutcome, parts: Sequence[RankEvidence]) -> RankEvidence:
    trained = [part.trained for part in parts if part.trained is not None]
    rows = {
        window: frozenset[int]().union(*(one.get(window, ()) for one in trained)) for one in trained for window in one
    }
    return replace(
        parts[-1],
        outcome=rank,
        attempts=tuple(attempt for part in parts for attempt in part.attempts),
        updates=tuple(update for part in parts for update in part.updates),
        trained=rows if len(trained) == len(parts) else None,
        changes=tuple(change for part in parts for change in part.changes),
        lives=tuple(parts),
    )


def _served(rank: RankEvidence, ranks: Sequence[RankEvidence], window: Window, case: Case) -> Iterator[Attempt]:
    """Yields the attempts of a rank without data and without a step in a window: those of the ranks with data, with the
    weights that it starts the next epoch or ends with, and without a loss scale."""
    number, taken = rank.number, {attempt.window for attempt in rank.attempts}
    # A rank that does not exist in a life has not run out of data.
    if number >= window.world_size or window.shares[number]:
        return
    others = {attempt.window: attempt for other in ranks for attempt in other.attempts if attempt.window not in taken}
    later = (event for event in rank.events.of(Forward) if (event.window or 0) > window.index and event.weights)
    weights = next(map(shown_by, later), rank.final_weights)
    if window.index not in others or weights is None:
        return
    # Only the next forward shows the result of a step without a torch optimizer. The rank's last weights count.
    own = max(one.index for one in case.problem.windows if one.index < window.index and one.shares[number])
    if own in others and rank.steps_by_hand:
        yield _of_another(others[own])
    yield _as_shown(replace(_of_another(others[window.index]), scale=None), weights)


def as_it_ran(case: Case, outcome: Outcome) -> Case:
    """The case with its actual stop. Killed between two files: the stop of the checkpoint that it resumes from, or none
    if its checkpoints are one file. A trainer that drops short windows and counts steps: the window after which it
    stopped."""
    first, *others = lives(case.resumed_at, outcome.ranks[0].events)
    windows = [event["window"] for event in first if event["window"] is not None]
    if case.resumed == BETWEEN_FILES:
        return replace(case, resumed_at=(windows[-1] + 1 if windows else 0) if others else None)
    stop, planned = case.resumed_at, case.problem.windows
    short = {window.index for window in planned if window.length < window.nominal}
    whole = [window for window in dict.fromkeys(windows) if window not in short]
    asked = [window.index for window in planned if window.index not in short][:stop]
    stepped = {event["window"] for event in first if event["event"] in ("step", "skip")}
    is_otherwise = stop is not None and whole == asked and not stepped & short
    return replace(case, resumed_at=whole[-1] + 1) if is_otherwise else case
