"""Checks that every rank computed its own share, once, and gave it to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations
from typing import TypeAlias

from conformance.cases.case import Case
from conformance.trace.events import Attempt, BackwardBegin, BackwardEnd, Forward, ZeroGrad
from conformance.verdict.evidence import RankEvidence, at, place
from conformance.verdict.judgement import Told
from conformance.workloads.outliers import has_infinite_loss
from conformance.workloads.reading_plan import rows

Rows: TypeAlias = Sequence[int | None]
Backward: TypeAlias = tuple[BackwardEnd, Rows]


def left_over(
    case: Case, ranks: Sequence[RankEvidence], window: int, *, repeats: bool = False
) -> tuple[Told, str | None] | None:
    """A sentence and a line if the step of a window also uses older gradients; None if not, or the rows do not show it.

    ``repeats``: only older gradients of samples that the rank also reads in the window count. A rank that reads other
    ranks' samples has no reason to read its own twice.
    """
    row_of = case.problem.workload.rows
    for rank in ranks:
        number = rank.number
        planned = Counter(
            row_of[one.samples[index]]
            for one in case.problem.windows[window : window + 1]
            for share in one.shares[number : number + 1]
            for index in chain(*share)
        )
        left = _left(rank, window, planned)
        if left and (not repeats or any(row in planned for _, rows in left for row in rows)):
            where = place(left[0][0])
            several = f"{len(left)} backwards" if left[1:] else "a backward"
            text = (
                f"in window {window}, rank {number} adds its gradients to those of {several}{at(where)} that no step "
                "used"
            )
            return Told(text, "clear older gradients, or evaluate under `torch.no_grad()`"), where
    return None


def _left(rank: RankEvidence, window: int, planned: Counter[int]) -> Sequence[Backward]:
    """The backwards before a window's own ones since gradients were last used or cleared, with their rows."""
    for life in rank.lives or (rank,):
        rows: dict[int, Rows] = {}
        waiting: list[Backward] = []
        for event in life.events.events:
            if isinstance(event, Forward):
                rows[event.forward] = event.rows
            elif isinstance(event, BackwardEnd) and event.forwards:
                waiting.append((event, [*chain.from_iterable(rows.get(forward, ()) for forward in event.forwards)]))
            elif isinstance(event, Attempt) and event.window == window:
                # The last backwards must have the planned rows; the ones before them are left over.
                left = Counter[int | None](planned)
                while waiting and left and Counter(waiting[-1][1]) <= left:
                    left -= Counter(waiting.pop()[1])
                return () if left or not planned else waiting
            elif isinstance(event, Attempt | ZeroGrad) or (
                # A backward that finds no gradients shows that earlier ones left none, such as with frozen parameters.
                isinstance(event, BackwardBegin) and event.gradients in ("none", "zero")
            ):
                waiting.clear()
    return ()


_NONE = frozenset[int]()


@dataclass(frozen=True)
class Redundant:
    """Ranks that did another rank's work. ``told``: in words; ``window``: the first one; ``always``: in all windows."""

    told: Told
    window: int
    always: bool


def redundant(case: Case, ranks: Sequence[RankEvidence]) -> Redundant | None:
    """Finds ranks that compute another rank's share; None if there are none, or the forwards do not show it.

    A rank may train on other samples than planned, if no other rank trains on them too. Ranks may fill up a smaller
    last window by repeating samples. Rows that match no sample, such as transformed ones, do not show the samples. With
    another number of ranks, a window has other shares, so each life is checked separately.
    """
    stop = case.resumed_at or 0
    if case.problem.resumed_layout is None or not all(rank.lives for rank in ranks):
        return _redundant(case, ranks, len(case.problem.windows))
    lives = zip(zip(*(rank.lives for rank in ranks), strict=True), case.world_sizes, strict=True)
    before, after = (life[:size] for life, size in lives)
    return _redundant(case, before, stop) or _redundant(case, after, len(case.problem.windows) - stop)


def _redundant(case: Case, ranks: Sequence[RankEvidence], asked: int) -> Redundant | None:
    """As `redundant`, in one life. ``asked``: the number of windows that the ranks should train."""
    allowed, planned = _planned(case)
    reached = sorted(set[int]().union(*(rank.trained or () for rank in ranks)))
    short = {one.index for one in case.problem.windows if len(one.batch) < case.problem.workload.batch_size}
    windows = [window for window in reached if window not in short]
    # A window without a step counts with the next one. A custom scaler may skip such a window.
    are_whole = len(reached) == asked
    for one, two in combinations(ranks, 2):
        mine, others = one.trained or {}, two.trained or {}
        together = [
            window
            for window in windows
            if any(allowed[row] < 2 for row in mine.get(window, _NONE) & others.get(window, _NONE))
        ]
        if together and (are_whole or together == windows):
            first, second, when = one.number, two.number, _in(together, windows)
            is_more = len(mine[together[0]]) >= len(others[together[0]])
            more, fewer = (first, second) if is_more else (second, first)
            text = f"rank {more} read its own samples and those of rank {fewer}{when}"
            if all(mine[window] == others[window] for window in together):
                text = f"ranks {first} and {second} read the same samples{when}"
            return Redundant(Told(text, "give each rank its own shard"), together[0], together == windows)
    for idle, busy in permutations(ranks, 2):
        trained, others = idle.trained, busy.trained or {}
        theirs, its_own = planned[idle.number], planned[busy.number]
        instead = [
            window
            for window in windows
            if trained is not None
            and window not in trained
            and others.get(window, _NONE) & theirs.get(window, _NONE) - its_own.get(window, _NONE)
        ]
        if instead and (are_whole or instead == windows):
            text = (
                f"rank {busy.number} trained on the samples of rank {idle.number}, and rank {idle.number} on "
                f"none{_in(instead, windows)}"
            )
            advice = "let each rank compute the gradients of its own shard"
            return Redundant(Told(text, advice), instead[0], instead == windows)
    return None


def unread(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """A phrase on samples that were never used; None if there are none, or the forwards do not show it.

    A window with an infinite loss may be left out, and so may samples of weight 0. A smaller last batch may be left out
    if no sample is trained on twice.
    """
    events = [event for rank in ranks for event in rank.events.of(Forward)]
    had = Counter[int | None](row for event in events for row in event.rows)
    if None in had or not events or not all(event.rows for event in events):
        return None
    row_of, windows = rows(case.spec()), case.problem.windows
    asked = {
        one.index: Counter[int | None](
            row_of[at] for at, sample in zip(one.samples, one.batch, strict=True) if sample.weight
        )
        for one in windows
        if not any(map(has_infinite_loss, one.batch))
    }
    trained = Counter(row for event in events if not event.extra for row in event.rows)
    if not trained - sum(asked.values(), Counter[int | None]()):
        asked = {at: one for at, one in asked.items() if len(windows[at].batch) == len(windows[0].batch)}
    if without := [at for at, of_window in asked.items() if of_window.keys() - had.keys()]:
        return f"samples of window{'s' if without[1:] else ''} {', '.join(map(str, without))} were never used"
    # Samples with equal inputs cannot be told apart.
    lost = (sum(asked.values(), Counter[int | None]()) - had).total()
    return f"{lost} sample{'s were' if lost > 1 else ' was'} never used" if lost else None


def _in(windows: Sequence[int], of: Sequence[int]) -> str:
    """A phrase that lists the windows, unless they are all."""
    if len(windows) == len(of):
        return ""
    return f" in window{'s' if windows[1:] else ''} {', '.join(map(str, windows))}"


def _planned(case: Case) -> tuple[Counter[int], list[dict[int, frozenset[int]]]]:
    """The largest count of each row in one global window; and the rows of each window, for each rank."""
    row_of, allowed = rows(case.spec()), Counter[int]()
    planned: list[dict[int, frozenset[int]]] = [{} for _ in range(max(case.world_sizes))]
    for window in case.problem.windows:
        found = [row_of[sample] for sample in window.samples]
        allowed |= Counter(found)
        for of_rank, share in zip(planned, window.shares, strict=False):
            of_rank[window.index] = frozenset(found[index] for index in chain(*share))
    return allowed, planned


def gave_nothing(case: Case, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """The ranks that put only zeros into every exchange of gradients, although their samples count."""
    counting = {
        rank
        for window in case.problem.windows
        for rank, share in enumerate(window.shares)
        if any(case.problem.workload.loss == "mean" or window.batch[index].weight for index in chain(*share))
    }
    return [rank for rank in ranks if rank.contributed is False and rank.number in counting]
