"""Trainers that go on with an accumulation window over the end of an epoch, as they read all epochs as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome
from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.training import forwarded, trained
from conformance.workloads.layout import Window


def as_one(case: Case) -> Case | None:
    """The case as it is for a trainer that reads all epochs as one; None if its windows are the same."""
    ends = case.problem.ends
    if (
        len(ends) == 1
        or case.orders is not None
        or all(len(share) == end.nominal for end in ends for share in end.shares)
    ):
        return None
    spec = case.spec()
    deals = [[spec["orders"][at][rank] for at in spec["epochs"]] for rank in range(case.world_size)]
    return replace(case, orders=(tuple(tuple(map(tuple, chain(*deal))) for deal in deals),))


def crosses(case: Case, other: Case, outcome: Outcome) -> bool:
    """Whether the steps of each rank end the windows of ``other``, all of them but a short last one, which may be
    dropped, and not those of ``case``. Who drops the short windows of each epoch may end some of both."""
    ranks = zip(*(life.recorded for life in outcome.lives or (outcome,)), strict=True)
    shown = [set(_rows_before_steps([one.events for one in of_rank])) for of_rank in ranks]
    own, others = ([_ends(one.problem.windows, rank) for rank in range(len(shown))] for one in (case, other))
    last = other.problem.windows[-1]
    dropped = [{max(ends)} if last.length < last.nominal else set[int]() for ends in others]
    ends_all = all(ends - may <= rows <= ends for rows, ends, may in zip(shown, others, dropped, strict=True))
    return ends_all and not all(rows <= ends for rows, ends in zip(shown, own, strict=True))


def _ends(windows: Sequence[Window], rank: int) -> set[int]:
    return set(accumulate(len(list(chain(*window.shares[rank]))) for window in windows))


def _rows_before_steps(lives: Sequence[Sequence[dict[str, Any]]]) -> Iterator[int]:
    """How many rows a rank has trained on at each of its steps, in one life after another."""
    count = 0
    for lines in lives:
        rows = forwarded(lines)
        for stretch in stretches(lines, trained(lines)):
            count += sum(len(rows[forward]) for forward in stretch.forwards)
            if stretch.end is not None:
                yield count
