"""Adds weights and gradients that a trainer reports, such as for parameters that cannot be seen. Reports replace only
values that are unseen, or seen rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain

from conformance.cases.case import Case
from conformance.laws.subjects import Rank, Run
from conformance.oracle.rounding import nearest
from conformance.results.result_lines import Vector
from conformance.trace.events import Forward, Report, Step
from conformance.trace.events import Vector as Reported
from conformance.verdict.comparison import same
from conformance.verdict.evidence import Attempt, RankEvidence, exactly, overlaid, shown_by, values
from conformance.verdict.judgement import Told
from conformance.workloads.precision import Format


def with_reports(case: Case, ranks: Sequence[RankEvidence], runs: Sequence[Run]) -> tuple[RankEvidence, ...]:
    """The evidence completed by the ranks' reports. If a rank does not report a window, the report of the first other
    rank counts."""
    # A rank that does not exist in a life gets the numbers of the first rank, which all ranks share.
    lives = [[*chain(*(run.ranks[at : at + 1] or run.ranks[:1] for run in runs))] for at in range(len(ranks))]
    reports = [[event for life in own for event in life.of(Report)] for own in lives]
    weights = _together([{event.step: event.weights for event in own} for own in reports])
    # The step itself may unscale or clip them.
    uses = not case.arithmetic.scaled and case.problem.workload.clip is None
    gradients = _together([{event.step: event.gradients for event in own if uses} for own in reports])
    each = zip(ranks, lives, weights, gradients, strict=True)
    return tuple(_completed(case, rank, own, said, used) if said else rank for rank, own, said, used in each)


def _together(reports: Sequence[Mapping[int, Reported | None]]) -> Sequence[Mapping[int, Vector]]:
    said = [{step: values(numbers) for step, numbers in own.items() if numbers} for own in reports]
    return [
        {step: overlaid([numbers, *(other[step] for other in said if step in other)]) for step, numbers in own.items()}
        for own in said
    ]


def unreported(ranks: Sequence[RankEvidence], must_step: Set[int]) -> Told | None:
    """A sentence on a required window that is neither seen nor reported, if others are reported; else None."""
    if not any(rank.reported for rank in ranks):
        return None
    for rank in ranks:
        known = {attempt.window for attempt in rank.attempts if None not in attempt.weights}
        # A window without a forward, if others have some, is visibly not trained.
        trained = must_step & rank.trained.keys() if rank.trained else must_step
        missing = sorted(trained - known)
        if missing:
            return Told(
                f"rank {rank.number} does not report all of its weights after window {missing[0]}, which are not "
                "visible either",
                "call `task.report` or `task.step` after each window, including skipped ones, on every rank",
            )
    return None


def is_at_start(case: Case, rank: RankEvidence) -> bool:
    """Whether its last weights are the initial ones; ranks that start apart may start from those of rank 0."""
    final = rank.final_weights or ()
    return any(same(final, tuple(map(float, case.problem.workload.start_of(of)))) for of in (0, rank.number))


def never_written(case: Case, rank: RankEvidence) -> bool:
    """Whether the model's own parameters never change although the rank trains: then forwards use other weights."""
    return ends_unstepped(rank) and is_at_start(case, rank) and _are_others(rank, [one.weights for one in rank.steps])


def ends_unstepped(rank: RankEvidence) -> bool:
    """Whether it ends with known weights, and without a step of a torch optimizer."""
    return bool(rank.final_weights) and None not in (rank.final_weights or ()) and not rank.events.of(Step)


def _are_others(rank: RankEvidence, shown: Sequence[Vector]) -> bool:
    """Whether some of these weights differ from its last ones."""
    return any(not same(one, rank.final_weights or ()) for one in shown)


def _completed(
    case: Case, rank: RankEvidence, lives: Sequence[Rank], reported: Mapping[int, Vector], used: Mapping[int, Vector]
) -> RankEvidence:
    hidden = _hidden(case, rank, lives)
    attempts = {attempt.window: attempt for attempt in rank.attempts if attempt.window not in hidden}
    is_rounded = any(event.rounded for event in rank.events.of(Forward))
    compute = case.arithmetic.compute if case.arithmetic.mixed else None
    shown = {} if rank.shard is not None else _shown(lives, hidden)
    unseen: Vector = (None,) * case.problem.workload.model.size
    before: Vector = tuple(map(float, case.problem.workload.start_of(0)))
    denied = list[str]()
    for step in sorted({*attempts, *reported, *shown}):
        attempt = attempts.get(step)
        seen = attempt.weights if attempt else shown.get(step, unseen)
        if attempt is None and step not in reported:
            if same(seen, before):
                # The window was left out, such as on an overflow.
                attempts[step] = Attempt(step, step, False, None, seen, scale=None, weights_by="shown")
            continue
        said = reported.get(step, unseen)
        weights = tuple(
            one if _is_seen(one, two, compute, is_rounded) else two for one, two in zip(seen, said, strict=True)
        )
        for name, one, two in zip(case.problem.workload.model.elements, weights, said, strict=True):
            if not (two is None or _stands_for(one, two, compute)):
                denied.append(f"{two:.9g} for {name} after window {step}, but it is {one:.9g}")
        if attempt is None:
            has_moved = not case.arithmetic.scaled or not same(weights, before)
            attempt = Attempt(step, None, has_moved, None, weights, scale=None, weights_by="shown")
        if weights != seen:
            attempt = replace(attempt, weights=weights, weights_by="reported")
        if not attempt.gradients and None not in used.get(step, unseen):
            attempt = replace(attempt, gradients=used[step], gradients_by="reported")
        attempts[step], before = attempt, weights

    def ended(life: RankEvidence) -> RankEvidence:
        """The life with the reported weights of its last window, if its last weights are not shown."""
        windows = {event.window for event in life.events.events if event.window is not None}
        known = [attempts[step].weights for step in sorted(attempts) if not windows or step <= max(windows)]
        is_unseen = None in (life.final_weights or (None,)) or not windows.isdisjoint(hidden)
        return replace(life, final_weights=known[-1]) if is_unseen and known else life

    return replace(
        ended(rank),
        attempts=tuple(attempts[step] for step in sorted(attempts)),
        lives=tuple(map(ended, rank.lives)),
        hidden=frozenset(hidden),
        denied=denied[0] if denied else None,
    )


def _hidden(case: Case, rank: RankEvidence, lives: Sequence[Rank]) -> set[int]:
    """The last windows of lives whose model ends with its initial parameters although forwards used others: the end
    does not show the result of these windows."""
    found = set[int]()
    for life, own in zip(rank.lives or (rank,), lives, strict=True):
        if not own.windows or not ends_unstepped(life):
            continue
        forward = next(iter(own.windows[0].forwards), None)
        initial = shown_by(forward)
        after = [weights for one in own.windows[:-1] if (weights := shown_by(one.shown_after))]
        has_stayed = initial and (is_at_start(case, life) or not _are_others(life, [initial]))
        if never_written(case, life) or (has_stayed and (not after or _are_others(life, after))):
            found.add(own.windows[-1].number)
    return found


def _shown(lives: Sequence[Rank], hidden: Set[int]) -> dict[int, Vector]:
    """The weights after each trained window, from the next window's first forward, or the end."""
    windows = [window for own in lives for window in own.windows if window.forwards and window.backwards]
    after = {window.number: shown_by(window.shown_after) for window in windows if window.number not in hidden}
    return {number: weights for number, weights in after.items() if weights}


def _is_seen(seen: float | None, said: float | None, compute: Format | None, is_rounded: bool) -> bool:
    """Whether to judge the seen value instead of the reported one."""
    if seen is None:
        return said is None
    return said is None or not (is_rounded and _stands_for(said, seen, compute))


def _stands_for(full: float | None, other: float, compute: Format | None) -> bool:
    """Whether ``other`` is the same number, or this number rounded to the model's compute format."""
    exact, rounded = exactly(full), exactly(other)
    if exact is None or rounded is None:
        return str(full) == str(other)
    return exact == rounded or (compute is not None and nearest(exact, compute) == rounded)
