"""Which samples the ranks repeated to fill up a last window that is short, or its smaller last micro-batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, cycle, islice

from conformance.verdict.evidence import RankEvidence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Sample


def padded(problem: Problem, ranks: Sequence[RankEvidence]) -> list[tuple[Sample, ...]]:
    """What the samples of the last window may be then; empty if no sample was repeated, or the rows do not show it.

    A row shows no target. If several samples have the repeated row, it may be those of the window or the first of all.
    """
    *earlier, last = problem.windows
    size = problem.layout.micro_batch_size
    if len(last.batch) == last.world_size * last.nominal * size:
        return []
    read = [_rows(rank) for rank in ranks]
    numbers: dict[tuple[object, ...], int] = {}
    for sample in chain(*problem.workload.batches):
        numbers.setdefault(sample.x, len(numbers))
    before = [sum(map(len, chain(*(window.shares[rank] for window in earlier)))) for rank in range(len(read))]
    begun = Counter(chain.from_iterable(rows[:count] for rows, count in zip(read, before, strict=True)))
    ending = [rows[count:] for rows, count in zip(read, before, strict=True)]
    planned = Counter[int | None](numbers[sample.x] for sample in last.batch)
    trained = Counter(chain.from_iterable(ending))
    repeated = trained - planned
    if (
        begun != Counter(numbers[sample.x] for window in earlier for sample in window.batch)
        or None in repeated
        or planned - trained
        or any(len(rows) > last.nominal * size for rows in ending)
    ):
        return []
    of_all = _by_row(chain(*problem.workload.batches), numbers)
    of_window = of_all | _by_row(last.batch, numbers)
    found = [
        (*last.batch, *chain.from_iterable(islice(cycle(samples[row]), count) for row, count in repeated.items()))
        for samples in (of_window, of_all)
    ]
    return list(dict.fromkeys(found)) if repeated else []


def _rows(rank: RankEvidence) -> list[int | None]:
    """Those of its training forwards, in order."""
    forwards = (event for event in rank.outcome.events if event["event"] == "forward" and not event.get("extra"))
    return [row for event in forwards for row in event["rows"]]


def _by_row(
    samples: Iterable[Sample], numbers: Mapping[tuple[object, ...], int]
) -> defaultdict[int | None, list[Sample]]:
    """The samples of each row, in order."""
    found = defaultdict[int | None, list[Sample]](list)
    for sample in samples:
        found[numbers[sample.x]].append(sample)
    return found
