"""What the ranks read in a last window that leaves it open: which samples they repeated, and how they shared it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice

from conformance.verdict.evidence import RankEvidence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Sample

#: Numbers of rows by their features: a row shows no target.
_Numbers = Mapping[tuple[object, ...], int]
_Rows = Sequence[int | None]


def as_dealt(problem: Problem, ranks: Sequence[RankEvidence]) -> Problem:
    """The problem with the last window split evenly, if ranks that should have no samples of it took their part."""
    if not problem.layout.in_whole_shares:
        return problem
    last, numbers = problem.windows[-1], row_numbers(problem)
    read = _read_last(problem, ranks, numbers)
    if read is None or not any(rows for rows, share in zip(read, last.shares, strict=True) if not share):
        return problem
    if Counter(chain.from_iterable(read)) != Counter(numbers[sample.x] for sample in last.batch):
        return problem
    return replace(problem, layout=replace(problem.layout, in_whole_shares=False))


def padded(problem: Problem, ranks: Sequence[RankEvidence]) -> list[tuple[Sample, ...]]:
    """What the samples of the last window may be if ranks repeated some to fill it up; empty if none was repeated, or
    the rows do not show it.

    If several samples have the repeated row, it may be those of the window or the first of all, or those that a rank
    without data of its own has read before.
    """
    last, size = problem.windows[-1], problem.layout.accumulation * problem.layout.micro_batch_size
    if len(last.batch) == last.world_size * size:
        return []
    numbers = row_numbers(problem)
    read = _read_last(problem, ranks, numbers)
    planned = Counter[int | None](numbers[sample.x] for sample in last.batch)
    trained = Counter(chain.from_iterable(read or ()))
    repeated = trained - planned
    if read is None or None in repeated or planned - trained or any(len(rows) > size for rows in read):
        return []
    of_all = _by_row(chain(*problem.workload.batches), numbers)
    of_window = of_all | _by_row(last.batch, numbers)
    found = [
        [*chain.from_iterable(islice(cycle(samples[row]), count) for row, count in repeated.items())]
        for samples in (of_window, of_all)
    ]
    without = [rank for rank, share in enumerate(last.shares) if not share and read[rank]]
    found.append([*chain.from_iterable(_read_before(problem, rank, read[rank], numbers) for rank in without)])
    whole = ((*last.batch, *samples) for samples in found if samples)
    return list(dict.fromkeys(samples for samples in whole if len(samples) % last.world_size == 0))


def row_numbers(problem: Problem) -> _Numbers:
    """As the recorder numbers rows: in the order of the samples, those with equal features as one."""
    numbers: dict[tuple[object, ...], int] = {}
    for sample in chain(*problem.workload.batches):
        numbers.setdefault(sample.x, len(numbers))
    return numbers


def _read_last(problem: Problem, ranks: Sequence[RankEvidence], numbers: _Numbers) -> list[_Rows] | None:
    """The rows that each rank trained on in the last window; None if they read other rows than planned before it."""
    *earlier, _ = problem.windows
    read = [_rows(rank) for rank in ranks]
    before = [sum(map(len, chain(*(window.shares[rank] for window in earlier)))) for rank in range(len(read))]
    begun = Counter(chain.from_iterable(rows[:count] for rows, count in zip(read, before, strict=True)))
    if begun != Counter(numbers[sample.x] for window in earlier for sample in window.batch):
        return None
    return [rows[count:] for rows, count in zip(read, before, strict=True)]


def _rows(rank: RankEvidence) -> _Rows:
    """Those of its training forwards, in order."""
    forwards = (event for event in rank.outcome.events if event["event"] == "forward" and not event.get("extra"))
    return [row for event in forwards for row in event["rows"]]


def _by_row(samples: Iterable[Sample], numbers: _Numbers) -> defaultdict[int | None, list[Sample]]:
    """The samples of each row, in order."""
    found = defaultdict[int | None, list[Sample]](list)
    for sample in samples:
        found[numbers[sample.x]].append(sample)
    return found


def _read_before(problem: Problem, rank: int, rows: _Rows, numbers: _Numbers) -> list[Sample]:
    """The first samples of ``rank`` that have these rows one after the other; none if there are none."""
    samples = [window.batch[index] for window in problem.windows for index in chain(*window.shares[rank])]
    for begin in range(len(samples) - len(rows) + 1):
        taken = samples[begin : begin + len(rows)]
        if [numbers[sample.x] for sample in taken] == rows:
            return taken
    return []
