"""The correct answers to a case in all accepted readings, following the ranks' loss scaler and last windows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, cycle, islice, product

from conformance.oracle.accepted_readings import SCALARS_IN_TENSORS, Ends, Reading, must_step, readings
from conformance.oracle.recurrence import ScalerHistory, Trajectory
from conformance.verdict.comparison import matches
from conformance.verdict.evidence import RankEvidence, exactly
from conformance.workloads.kept_answers import ANSWERS
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem

_Rows = Sequence[int | None]


def as_dealt(problem: Problem, ranks: Sequence[RankEvidence]) -> Problem:
    """The problem with last windows split evenly, if ranks that should have no samples of them trained on some."""
    if not problem.layout.in_whole_shares:
        return problem
    for last, read in zip(problem.ends, _read_last(problem, ranks), strict=False):
        if not any(rows for rows, share in zip(read, last.shares, strict=True) if not share):
            return problem
        if Counter(chain.from_iterable(read)) != Counter(problem.workload.rows[at] for at in last.samples):
            return problem
    return replace(problem, layout=replace(problem.layout, in_whole_shares=False))


def padded(problem: Problem, ranks: Sequence[RankEvidence]) -> list[Ends]:
    """The possible last windows of the epochs if ranks repeated samples to fill them up; empty if none was repeated, or
    the rows do not show it.

    If several samples have the repeated row, the repeated ones may be those of the window, the first of all, or those
    that the rank read before.
    """
    if all(len(window.batch) == problem.workload.batch_size for window in problem.ends):
        return []
    read = _read_last(problem, ranks)
    repeated = [_repeated(problem, last, rows) for last, rows in zip(problem.ends, read, strict=False)]
    found = list[Ends]()
    for of_epochs in product(*repeated) if repeated else ():
        filled = map(partial(problem.layout.filled_up, problem.workload), problem.ends, of_epochs)
        ends = {window.index: window for window in filled}
        if all(len(window.batch) % window.world_size == 0 for window in ends.values()):
            found.append(ends)
    return found


def _repeated(problem: Problem, last: Window, read: Sequence[_Rows]) -> list[tuple[int, ...]]:
    """The samples that ranks may have repeated in the last window of an epoch; empty if none."""
    size = problem.layout.accumulation * problem.layout.micro_batch_size
    planned = Counter[int | None](problem.workload.rows[at] for at in last.samples)
    trained = Counter(chain.from_iterable(read))
    repeated = trained - planned
    if len(last.batch) == last.world_size * size or not repeated or None in repeated or planned - trained:
        return []
    if any(len(rows) > size for rows in read):
        return []
    of_all = _by_row(problem, range(problem.workload.samples))
    of_window = of_all | _by_row(problem, last.samples)
    taken = [
        tuple(chain.from_iterable(islice(cycle(of_rows[row]), count) for row, count in repeated.items()))
        for of_rows in (of_window, of_all)
    ]
    if any(len(of_all[row]) > 1 for row in repeated):
        before = [_read_before(problem, last, rank, rows) for rank, rows in enumerate(read)]
        taken += [tuple(chain(*one)) for one in zip(*before, strict=True)]
    return list(dict.fromkeys(one for one in taken if len(one) == repeated.total()))


def _read_last(problem: Problem, ranks: Sequence[RankEvidence]) -> list[list[_Rows]]:
    """The rows that each rank trained on in the last window of each epoch, if every epoch has the same surplus or lack
    of rows; empty if a rank read other rows than planned before it."""
    read, found = [_rows(rank) for rank in ranks], list[list[_Rows]]()
    positions = [0] * len(read)
    for last in problem.ends:
        *earlier, _ = [window for window in problem.windows if window.epoch == last.epoch]
        of_epoch = list[_Rows]()
        for rank, rows in enumerate(read):
            of_plan = [sum(map(len, window.shares[rank])) for window in problem.windows if window.epoch == last.epoch]
            of_run = sum(len(micro_batch) for window in problem.windows for micro_batch in window.shares[rank])
            end = positions[rank] + sum(of_plan) + (len(rows) - of_run) // len(problem.ends)
            of_epoch.append(rows[positions[rank] : end])
            positions[rank] = end
        before = [sum(map(len, chain(*(window.shares[rank] for window in earlier)))) for rank in range(len(read))]
        before_last = Counter(chain.from_iterable(rows[:count] for rows, count in zip(of_epoch, before, strict=True)))
        if before_last != Counter(problem.workload.rows[at] for window in earlier for at in window.samples):
            return []
        found.append([rows[count:] for rows, count in zip(of_epoch, before, strict=True)])
    return found


def _rows(rank: RankEvidence) -> _Rows:
    """The rows of a rank's training forwards, in order."""
    return [row for event in rank.events.forwards for row in event.rows]


def _by_row(problem: Problem, samples: Iterable[int]) -> defaultdict[int | None, list[int]]:
    """The numbers of the samples of each row, in order."""
    found = defaultdict[int | None, list[int]](list)
    for number in samples:
        found[problem.workload.rows[number]].append(number)
    return found


def _read_before(problem: Problem, last: Window, rank: int, rows: _Rows) -> tuple[Sequence[int], Sequence[int]]:
    """The samples that `rank` may have read after its own share of a last window: the first and the last consecutive
    samples of its epoch with these rows; empty if there are none."""
    windows = [window for window in problem.windows if window.epoch == last.epoch]
    row_of = problem.workload.rows
    samples = [window.samples[index] for window in windows for index in chain(*window.shares[rank])]
    further = rows[sum(map(len, last.shares[rank])) :]
    runs = (samples[begin : begin + len(further)] for begin in range(len(samples) - len(further) + 1))
    found = [run for run in runs if [row_of[number] for number in run] == further]
    return (found[0], found[-1]) if found else ((), ())


def accepted_by(
    problem: Problem, ranks: Sequence[RankEvidence], *, carries: bool = False
) -> tuple[Sequence[Reading], ScalerHistory | None]:
    """The accepted readings, and the skips and loss scales of rank 0 that the correct answers follow."""
    problem = as_dealt(problem, ranks)
    history = _history(problem, ranks[0])
    early = all(rank.averaged_early for rank in ranks)
    # Averaging early has a wider bound, which only trainers that average early get.
    accepted = readings(problem, padded(problem, ranks), history.skips if history else frozenset(), carries=carries)
    # So do steps with scalars in tensors.
    if any(rank.scalars_in_tensors for rank in ranks):
        accepted = tuple(replace(one, deviations=(*one.deviations, SCALARS_IN_TENSORS)) for one in accepted)
    return [reading for reading in accepted if early or not reading.averages_early], history


def _history(problem: Problem, rank: RankEvidence) -> ScalerHistory | None:
    """The skips and scales of ``rank``'s loss scaler. A last window without an attempt was dropped if allowed, not
    skipped."""
    attempts = rank.attempts
    if not problem.precision.scaled or not attempts:
        return None
    stepped = {attempt.window for attempt in attempts if attempt.stepped}
    scales = {attempt.window: scale for attempt in attempts if (scale := exactly(attempt.scale))}
    skips = frozenset(range(problem.workload.steps)) - stepped
    attempted = {attempt.window for attempt in attempts}
    dropped = skips - attempted - must_step(problem)
    if len(scales) < len(attempts):
        return ScalerHistory(skips - dropped)
    # A window that was left out has the scale of the next window.
    known = (min((window for window in scales if window >= at), default=None) for at in range(max(scales) + 1))
    return ScalerHistory(skips - dropped, tuple(scales[window] for window in known if window is not None))


# Trainers of other backends get the same problems, a hundred cases later; each takes 0.1 MiB.
@lru_cache(maxsize=128)
def trajectory_of(reading: Reading, history: ScalerHistory | None) -> Trajectory:
    return ANSWERS.get(("trajectory", reading, history), reading.recurrence(history).run)


def fit(ranks: Sequence[RankEvidence], readings: Iterable[Reading], history: ScalerHistory | None) -> bool:
    """Whether the ranks' numbers match one of these readings."""
    return any(matches(ranks, trajectory_of(reading, history).steps) for reading in readings)


def without_gradients(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    return tuple(
        replace(rank, attempts=tuple(replace(attempt, gradients=None) for attempt in rank.attempts)) for rank in ranks
    )
