"""Gradients that a window adds its own to: those of backwards before it that no step has used, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

from conformance.cases.case import Case
from conformance.trace.events import Attempt, BackwardBegin, BackwardEnd, Forward, ZeroGrad
from conformance.verdict.evidence import RankEvidence
from conformance.verdict.last_window import row_numbers

Rows: TypeAlias = Sequence[int | None]
Backward: TypeAlias = tuple[BackwardEnd, Rows]


def left_over(
    case: Case, ranks: Sequence[RankEvidence], window: int, *, repeats: bool = False
) -> tuple[str, str | None] | None:
    """Along which further gradients the step of a window goes, too; None if along none, or the rows do not show it.

    ``repeats``: they must be of samples that the rank also reads in the window. Who reads the samples of other ranks
    has no reason to read its own twice.
    """
    for rank in ranks:
        planned = _planned(case, rank, window)
        left = _left(rank, window, planned)
        again = any(row in planned for _, rows in left for row in rows)
        if left and (again or not repeats):
            event = left[0][0]
            where = "{}:{}".format(*event.where) if event.where else None
            at = f" ({where})" if where else ""
            several = f"{len(left)} backwards" if left[1:] else "a backward"
            text = (
                f"in window {window}, rank {rank.outcome.rank} adds its gradients to those of {several}{at} before it, "
                "which no step has used; clear these, or evaluate under `torch.no_grad()`"
            )
            return text, where
    return None


def _left(rank: RankEvidence, window: int, planned: Counter[int]) -> Sequence[Backward]:
    """The backwards before those of a window's own rows since gradients were last used or cleared, with their rows."""
    for life in rank.lives or (rank,):
        rows: dict[int, Rows] = {}
        waiting: list[Backward] = []
        for event in life.events.events:
            if isinstance(event, Forward):
                rows[event.forward] = event.rows
            elif isinstance(event, BackwardEnd) and event.forwards:
                waiting.append((event, [*chain.from_iterable(rows.get(forward, ()) for forward in event.forwards)]))
            elif isinstance(event, Attempt) and event.window == window:
                return _before(planned, waiting)
            elif isinstance(event, Attempt | ZeroGrad) or (
                # A backward that finds none shows that those before left none, as with frozen parameters.
                isinstance(event, BackwardBegin) and event.gradients in ("none", "zero")
            ):
                waiting.clear()
    return ()


def _before(planned: Counter[int], backwards: list[Backward]) -> Sequence[Backward]:
    """Those before the last ones, which have the rows that are planned; none if these have others or none are."""
    left = Counter[int | None](planned)
    while backwards and left and Counter(backwards[-1][1]) <= left:
        left -= Counter(backwards.pop()[1])
    return () if left or not planned else backwards


def _planned(case: Case, rank: RankEvidence, window: int) -> Counter[int]:
    """The rows of a rank in a window."""
    row_of, number = row_numbers(case.problem), rank.outcome.rank
    return Counter(
        row_of[one.batch[index].x]
        for one in case.problem.windows[window : window + 1]
        for share in one.shares[number : number + 1]
        for index in chain(*share)
    )
