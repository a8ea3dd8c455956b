"""The evidence of a case whose ranks run in two lives, up to a stop and from there.

Each life is read by itself, as all that a process counts begins anew in it. Then they are joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from conformance.cases.case import BETWEEN_FILES, Case
from conformance.laws.run import Run
from conformance.runner.outcome import Outcome, RankOutcome
from conformance.trace.lives import Events, by_life, lives
from conformance.verdict.evidence import Attempt, RankEvidence, read
from conformance.verdict.reported import with_reports
from conformance.verdict.watched_weights import with_watched_weights


def evidence(case: Case, outcome: Outcome, runs: Sequence[Run]) -> tuple[RankEvidence, ...]:
    """What each rank did; ``runs``: one for each life, or the only one."""
    parts = by_life(case.spec(), [rank.events for rank in outcome.ranks])
    found = [
        with_watched_weights(
            [_read(case, rank, own, number) for rank, own in zip(outcome.ranks, life, strict=False)], run
        )
        for number, ((_, life), run) in enumerate(zip(parts, runs, strict=True))
    ]
    joined = [
        _joined(rank, [life[at] if at < len(life) else _in_place_of_none(life[0]) for life in found])
        for at, rank in enumerate(outcome.ranks)
    ]
    return with_reports(case, found[0] if len(found) == 1 else joined, runs)


def _in_place_of_none(first: RankEvidence) -> RankEvidence:
    """What stands for a rank in a life that does not have it: the numbers of the first rank, which are those of all."""
    return replace(first, trained=first.trained and {}, changes=())


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
