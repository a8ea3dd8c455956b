"""In what order the ranks read the samples of each epoch, by the rows that went into their forwards, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, combinations

from conformance.cases.case import Case
from conformance.verdict.evidence import RankEvidence, named
from conformance.verdict.last_window import row_numbers
from conformance.workloads.plan import order_of, rows

_Rows = frozenset[int]


def in_first_order(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """That later epochs have the order of the first one, which they should not; None if the rows do not show it."""
    read = [rank.trained for rank in ranks if rank.trained is not None]
    if not (case.problem.workload.shuffle and case.problem.in_order) or len(read) < len(ranks):
        return None
    planned = [frozenset(rows) for rows in _planned(case)]
    found = [_Rows().union(*(of_rank.get(window, ()) for of_rank in read)) for window in range(len(planned))]
    batches = case.problem.workload.windows_of_epoch
    other = [window for window, rows in enumerate(found) if rows != planned[window]]
    if not other or any(found[window] != planned[window % batches] for window in other):
        return None
    return (
        f"in epoch {other[0] // batches} the samples come in the order of epoch 0, from window {other[0]} on; call "
        "`sampler.set_epoch(epoch)` before each epoch"
    )


def resumed_in_other_order(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """That all ranks go on in the order of another epoch where training is resumed; None if the rows do not show it."""
    workload, stop = case.problem.workload, case.resumed_at
    lives = [rank.lives[1] for rank in ranks if len(rank.lives) > 1]
    if stop is None or not workload.shuffle or not case.problem.in_order or len(lives) < len(ranks):
        return None
    if len({*case.world_sizes}) > 1:
        return None
    spec, epoch = case.spec(), case.problem.windows[stop].epoch
    before = [window for window in case.problem.windows[:stop] if window.epoch == epoch]
    row_of, found = rows(spec), set(range(workload.epochs + 1))
    for number, life in enumerate(lives):
        read = [row for event in life.events.forwards for row in event.rows]
        done = sum(len(micro_batch) for window in before for micro_batch in window.shares[number])
        for other in list(found):
            own = [row_of[sample] for sample in order_of(spec, number, other)[done:]]
            if not read or read[: len(own)] != own:
                found.discard(other)
    if epoch in found or len(found) != 1:
        return None
    return (
        f"training was resumed in epoch {epoch}, and goes on in the order of epoch {min(found)}: save the epoch, and "
        "tell the sampler with `set_epoch`, also where one has just ended"
    )


def in_orders_of_their_own(case: Case, ranks: Sequence[RankEvidence]) -> str | None:
    """Which ranks read samples of each other, but in other windows of an epoch, while no rank reads some others; None
    if no two do, or the rows do not show it. Where steps are too many, windows are not those of the plan."""
    too_many = any(len(rank.attempts) > len(case.problem.windows) for rank in ranks)
    if not case.problem.in_order or too_many or all(_is_its_own(case, rank) for rank in ranks):
        return None
    planned, batches = _planned(case), case.problem.workload.windows_of_epoch
    # A last window may be filled up by repeating samples.
    whole = [window for window, rows in enumerate(planned) if rows.total() == case.problem.workload.batch_size]
    for epoch in range(case.problem.workload.epochs):
        often = sum(planned[epoch * batches : (epoch + 1) * batches], Counter[int]())
        places = [
            {row: at for at in whole if at // batches == epoch for row in (rank.trained or {}).get(at, ())}
            for rank in ranks
        ]
        unread = often.keys() - chain.from_iterable(
            rows for rank in ranks for at, rows in (rank.trained or {}).items() if at // batches == epoch
        )
        if any(rank.trained is None for rank in ranks) or not unread:
            continue
        for (one, mine), (two, others) in combinations(zip(ranks, places, strict=True), 2):
            both = [row for row in mine.keys() & others.keys() if often[row] == 1 and mine[row] != others[row]]
            if both:
                return (
                    f"{named([one.outcome.rank, two.outcome.rank])} go through epoch {epoch} in different orders: "
                    f"{len(both)} samples are read by both, in different windows, and {len(unread)} by no rank; give "
                    "the samplers of all ranks the same seed, and the same epoch with `set_epoch`"
                )
    return None


def _is_its_own(case: Case, rank: RankEvidence) -> bool:
    """Whether a rank reads its own windows of one epoch after the other, though it may leave some out, or read on."""
    row_of, epoch = row_numbers(case.problem), 0
    own: dict[int, list[set[int]]] = defaultdict(list)
    for window in case.problem.windows:
        if rank.outcome.rank < window.world_size:
            own[window.epoch].append({row_of[window.batch[at].x] for at in chain(*window.shares[rank.outcome.rank])})
    for event in rank.events.forwards:
        while epoch in own and not any(share.issuperset(event.rows) for share in own[epoch]):
            epoch += 1
    return epoch == max(own, default=None)


def _planned(case: Case) -> list[Counter[int]]:
    """The rows of each window."""
    row_of: Mapping[tuple[object, ...], int] = row_numbers(case.problem)
    return [Counter(row_of[sample.x] for sample in window.batch) for window in case.problem.windows]
