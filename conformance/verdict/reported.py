"""Weights and gradients that a trainer reports, as where its parameters cannot be seen. They stand for what is not
seen, or only rounded, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from conformance.cases.case import Case
from conformance.laws.run import Rank, Run, Window
from conformance.oracle.rounding import nearest
from conformance.results.records import Vector
from conformance.trace.events import Forward, Report, Step
from conformance.trace.events import Vector as Reported
from conformance.verdict.comparison import same
from conformance.verdict.evidence import Attempt, RankEvidence, exactly, overlaid, values
from conformance.workloads.precision import Format


def with_reports(case: Case, ranks: Sequence[RankEvidence], runs: Sequence[Run]) -> tuple[RankEvidence, ...]:
    """The same evidence, completed by what the ranks report. What a rank does not report of a window, but others, is
    that of the first rank that does."""
    reports = [
        [event for run in runs for rank in _of_life(run, at) for event in rank.of(Report)] for at in range(len(ranks))
    ]
    weights = _together([{event.step: event.weights for event in own} for own in reports])
    # The step itself may unscale or clip them.
    uses = not case.arithmetic.scaled and case.problem.workload.clip is None
    gradients = _together([{event.step: event.gradients for event in own if uses} for own in reports])
    each = zip(ranks, weights, gradients, strict=True)
    return tuple(_completed(case, rank, runs, own, used) if own else rank for rank, own, used in each)


def _of_life(run: Run, rank: int) -> Sequence[Rank]:
    """The rank as it is in a life; the first one, whose numbers stand for all, where a life does not have it."""
    return run.ranks[rank : rank + 1] or run.ranks[:1]


def _together(reports: Sequence[Mapping[int, Reported | None]]) -> Sequence[Mapping[int, Vector]]:
    said = [{step: values(numbers) for step, numbers in own.items() if numbers} for own in reports]
    return [
        {step: overlaid([numbers, *(other[step] for other in said if step in other)]) for step, numbers in own.items()}
        for own in said
    ]


def unreported(ranks: Sequence[RankEvidence], must_step: Set[int]) -> str | None:
    """Which of the windows that must be stepped is neither seen nor reported, where others are reported."""
    if not any(rank.reported for rank in ranks):
        return None
    for rank in ranks:
        known = {attempt.window for attempt in rank.attempts if None not in attempt.weights}
        # Of a window without a forward, where others have some, it is seen that it is not trained.
        trained = must_step & rank.trained.keys() if rank.trained else must_step
        missing = sorted(trained - known)
        if missing:
            return (
                f"rank {rank.outcome.rank} does not report all of its weights after window {missing[0]}, which cannot "
                "be seen either; call `task.report`, or go through `task.step`, after each window, skipped ones "
                "included, on every rank"
            )
    return None


def never_written(case: Case, rank: RankEvidence) -> bool:
    """Whether the model's own parameters end as they began, though the rank has trained: forwards get others then."""
    final = rank.final_weights
    if not final or None in final or rank.events.of(Step):
        return False
    return is_at_start(case, rank) and any(not same(step.weights, final) for step in rank.steps)


def is_at_start(case: Case, rank: RankEvidence) -> bool:
    """Whether its last weights are those that training began with; ranks that start apart are made equal to rank 0."""
    final = rank.final_weights or ()
    return any(same(final, tuple(map(float, case.problem.workload.start_of(of)))) for of in (0, rank.outcome.rank))


def _completed(
    case: Case,
    rank: RankEvidence,
    runs: Sequence[Run],
    reported: Mapping[int, Vector],
    used: Mapping[int, Vector],
) -> RankEvidence:
    hidden = _hidden(case, rank, runs)
    attempts = {attempt.window: attempt for attempt in rank.attempts if attempt.window not in hidden}
    is_rounded = any(event.rounded for event in rank.events.of(Forward))
    compute = case.arithmetic.compute if case.arithmetic.mixed else None
    shown = {} if rank.shard is not None else _shown(rank, runs, hidden)
    unseen: Vector = (None,) * case.problem.workload.model.size
    before: Vector = tuple(map(float, case.problem.workload.start_of(0)))
    denied = list[str]()
    for step in sorted({*attempts, *reported, *shown}):
        attempt = attempts.get(step)
        seen = attempt.weights if attempt else shown.get(step, unseen)
        if attempt is None and step not in reported:
            if same(seen, before):
                # It is left out, as on an overflow.
                attempts[step] = Attempt(step, step, False, None, seen, scale=None, weights_by="shown")
            continue
        said = reported.get(step, unseen)
        weights = tuple(
            one if _is_seen(one, two, compute, is_rounded) else two for one, two in zip(seen, said, strict=True)
        )
        for name, one, two in zip(case.problem.workload.model.elements, weights, said, strict=True):
            if not (two is None or _stands_for(one, two, compute)):
                denied.append(f"{two:.9g} for {name} after window {step}, which is seen to be {one:.9g}")
        if attempt is None:
            has_moved = not case.arithmetic.scaled or not same(weights, before)
            attempt = Attempt(step, None, has_moved, None, weights, scale=None, weights_by="shown")
        if weights != seen:
            attempt = replace(attempt, weights=weights, weights_by="reported")
        if not attempt.gradients and None not in used.get(step, unseen):
            attempt = replace(attempt, gradients=used[step], gradients_by="reported")
        attempts[step], before = attempt, weights
    return replace(
        rank,
        attempts=tuple(attempts[step] for step in sorted(attempts)),
        final_weights=_left(rank, hidden, attempts),
        lives=tuple(replace(life, final_weights=_left(life, hidden, attempts)) for life in rank.lives),
        hidden=frozenset(hidden),
        denied=next(iter(denied), None),
    )


def _hidden(case: Case, rank: RankEvidence, runs: Sequence[Run]) -> set[int]:
    """The last windows of the lives that end with the model's own parameters as they were, where forwards used others:
    what came of these windows is not shown by the end."""
    found = set[int]()
    for life, run in zip(rank.lives or (rank,), runs, strict=True):
        windows = [window for own in _of_life(run, rank.outcome.rank) for window in own.windows]
        if windows and (never_written(case, life) or _stays(case, life, windows)):
            found.add(windows[-1].number)
    return found


def _stays(case: Case, life: RankEvidence, windows: Sequence[Window]) -> bool:
    """Whether the parameters end as they were when training began, and forwards of later windows, if there are any,
    used others, in a life without a step of an optimizer of torch's."""
    final = life.final_weights
    if not final or None in final or life.events.of(Step):
        return False
    begun = windows[0].forwards[0].weights if windows[0].forwards else None
    if begun is None:
        return False
    after = [values(event.weights) for event in (one.shown_after for one in windows[:-1]) if event and event.weights]
    has_stayed = is_at_start(case, life) or same(values(begun), final)
    return has_stayed and (not after or any(not same(one, final) for one in after))


def _left(life: RankEvidence, hidden: Set[int], attempts: Mapping[int, Attempt]) -> Vector | None:
    """The weights that a life ends with, those reported of its last window if these are not shown."""
    final = life.final_weights
    windows = {event.window for event in life.events.events if event.window is not None}
    known = [attempts[step].weights for step in sorted(attempts) if step <= max(windows, default=step)]
    is_unseen = final is None or None in final or not windows.isdisjoint(hidden)
    return known[-1] if is_unseen and known else final


def _shown(rank: RankEvidence, runs: Sequence[Run], hidden: Set[int]) -> dict[int, Vector]:
    """The weights that the next window's first forward, or the end, shows after a window that was trained here."""
    windows = [
        window
        for run in runs
        for own in _of_life(run, rank.outcome.rank)
        for window in own.windows
        if window.forwards and window.backwards and window.number not in hidden
    ]
    after = {window.number: window.shown_after for window in windows}
    return {number: values(event.weights) for number, event in after.items() if event and event.weights}


def _is_seen(seen: float | None, said: float | None, compute: Format | None, is_rounded: bool) -> bool:
    """Whether what is seen is to be judged, and not what is said of it."""
    if seen is None:
        return said is None
    return said is None or not (is_rounded and _stands_for(said, seen, compute))


def _stands_for(full: float | None, other: float, compute: Format | None) -> bool:
    """Whether ``other`` is the same number, or it rounded to the format that the model computes in."""
    exact, rounded = exactly(full), exactly(other)
    if exact is None or rounded is None:
        return str(full) == str(other)
    return exact == rounded or (compute is not None and nearest(exact, compute) == rounded)
