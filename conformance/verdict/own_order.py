"""Where the order of samples is the trainer's own: in which order the ranks have read them, and how often each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, product
from typing import Any

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome
from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.lineage import without_copies, without_rehearsals
from conformance.trace.hindsight.training import forwarded, trained
from conformance.trace.lives import Events, lives
from conformance.verdict.evidence import cleared
from conformance.verdict.guard import OTHER_ORDER, POSITION
from conformance.workloads.behaviour import Way
from conformance.workloads.layout import Orders, Shares, micro_batches
from conformance.workloads.workload import Workload


def as_read(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
    """The case with the order in which the ranks have read the samples, and the events placed by it.

    Both as they are where the order is given, where a rank did not finish, or where forwards do not show their samples.
    """
    if not case.problem.workload.own_order or not all(rank.finished for rank in outcome.ranks):
        return case, outcome
    spec = case.spec()
    ranks = [lives(case.resumed_at, rank.events) for rank in outcome.recorded or outcome.ranks]
    found = [_read(spec, ranks, *how) for how in product((False, True), repeat=3)]
    # Of several ends of the epochs, those that leave the fewest read twice.
    orders = [min(_orders(case, read), key=lambda one: _wrong(case.problem.workload, one)) for read in found if read]
    if not orders:
        return case, outcome
    case = replace(case, orders=min(orders, key=lambda one: _wrong(case.problem.workload, one)[0]))
    return case, outcome.placed(case.spec()) if outcome.recorded else outcome


def _read(
    spec: Mapping[str, Any],
    ranks: Sequence[Sequence[Events]],
    is_last: bool,
    is_once: bool,
    without_cleared: bool,
) -> list[list[int]] | None:
    """The samples that each rank trained on, in order, in all its lives; None if the forwards of one do not show them.
    All rows differ, so the number of a row is that of its sample.

    ``is_last``: what goes forward before the samples of a step's window, or after the last step, is no part of it, as
    in an evaluation that goes backward. ``is_once``: what goes forward again before a step is the same micro-batch, as
    in a forward that is recomputed; else it is read twice. ``without_cleared``: forwards whose gradients were cleared
    do not count. Trainers that keep gradients elsewhere clear those that train, too.
    """
    found = []
    for life_of_rank in ranks:
        own = list[int | None]()
        for first, events in zip((0, spec["resumed_at"]), life_of_rank, strict=False):
            end = spec["steps"] if len(life_of_rank) == 1 or first else spec["resumed_at"]
            lines = without_rehearsals(without_copies(events), end - first, end - first)
            trains = trained(lines) - (cleared(events) if without_cleared else set())
            rows = forwarded(lines)
            for stretch in stretches(lines, trains):
                forwards = [rows[forward] or (None,) for forward in stretch.forwards]
                of_step = list(chain.from_iterable(dict.fromkeys(forwards) if is_once else forwards))
                if is_last:
                    of_step = [] if stretch.end is None else of_step[-spec["accumulation"] * spec["micro_batch_size"] :]
                own += of_step
        found.append([number for number in own if number is not None])
        if not own or None in own:
            return None
    return found


#: Of more than so many times what is asked, no cut into epochs says more than that it goes on.
_MOST = 3


def _orders(case: Case, read: Sequence[Sequence[int]]) -> Iterator[Orders]:
    """What was read, in epochs: as long as planned, and if that is not as much as was read, of any number of whole
    windows or of micro-batches, or all equally long."""
    workload = case.problem.workload
    planned = [sum(map(len, share)) for share in case.spec()["orders"][0]]
    size = case.problem.layout.micro_batch_size
    yield tuple(_epochs(read, planned, size))
    if _is_as_much(case, read) or sum(map(len, read)) > _MOST * workload.samples * workload.epochs:
        return
    cuts = list(_cuts(tuple(micro_batches(own, size) for own in read), workload.epochs))
    yield from sorted(cuts, key=lambda one: sum(len(order[0]) % case.accumulation > 0 for order in one[:-1]))
    if not any(len(own) % workload.epochs for own in read):
        yield tuple(_epochs(read, [len(own) // workload.epochs for own in read], size))


def _is_as_much(case: Case, read: Sequence[Sequence[int]]) -> bool:
    """Whether each rank has read as many samples as planned, so that its epochs end where they should."""
    workload = case.problem.workload
    return all(len(own) * len(read) == workload.samples * workload.epochs for own in read)


def _epochs(read: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> Iterator[Shares]:
    """The micro-batches of each rank in each epoch; ``lengths``: how many samples a rank has in one."""
    for epoch in range(max(-(-len(own) // length) for own, length in zip(read, lengths, strict=True))):
        yield tuple(
            micro_batches(own[epoch * length : (epoch + 1) * length], size)
            for own, length in zip(read, lengths, strict=True)
        )


def _cuts(shares: Shares, epochs: int) -> Iterator[Orders]:
    """All ways to cut what each rank has read into as many epochs, on all ranks after as many micro-batches."""
    length = max(map(len, shares))
    for ends in combinations(range(1, length), epochs - 1):
        parts = list(pairwise((0, *ends, length)))
        yield tuple(tuple(share[begin:end] for share in shares) for begin, end in parts)


def _wrong(workload: Workload, orders: Orders) -> tuple[int, int]:
    """How many samples are read too often in all epochs together, or too seldom, whichever are more; and how many are
    read too often."""
    asked: list[Counter[int]] = [Counter(range(workload.samples))] * workload.epochs
    found = [Counter(chain.from_iterable(chain(*order))) for order in orders]
    length = max(len(asked), len(found))
    asked, found = ([*one, *[Counter[int]()] * (length - len(one))] for one in (asked, found))
    both = ((found, asked), (asked, found))
    repeated, unread = (sum((one - other).total() for one, other in zip(*two, strict=True)) for two in both)
    return max(repeated, unread), repeated


def not_once(case: Case) -> str | None:
    """Which samples all ranks together have read otherwise than once in an epoch, in words; None if none."""
    workload, orders = case.problem.workload, case.orders or ()
    read = [list(chain(*chain(*of_rank))) for of_rank in zip(*orders, strict=True)]
    if len(orders) == workload.epochs and not _is_as_much(case, read) and not each_rank_reads_all(case):
        text = _somewhere(workload, orders)
        if text is not None:
            return text
    for epoch, order in enumerate(orders[: workload.epochs]):
        if (text := _not_once_in(workload, f"epoch {epoch}", order)) is not None:
            return text
    if len(orders) < workload.epochs:
        return f"epoch {len(orders)} is never read, and this case asks for {workload.epochs} epochs"
    if len(orders) > workload.epochs:
        return f"training goes on when all samples have been read {workload.epochs} times, once in each epoch"
    return None


def lost_at_stop(case: Case) -> str | None:
    """The mistake that a resume has made, if samples are read otherwise than once in an epoch for it alone: before the
    stop, and after it, each is read as often as any other, or once more."""
    stop, orders = case.resumed_at, case.orders or ()
    if stop is None or len({*case.world_sizes}) > 1:
        return None
    read = [list(chain(*chain(*of_rank))) for of_rank in zip(*orders, strict=True)]
    lives: tuple[list[int], list[int]] = [], []
    for rank, own in enumerate(read):
        before = sum(len(share) for window in case.problem.windows[:stop] for share in window.shares[rank])
        lives[0].extend(own[:before])
        lives[1].extend(own[before:])
    for life in lives:
        times = Counter(life)
        often = [times[sample] for sample in range(case.problem.workload.samples)]
        if max(often) - min(often) > 1:
            return None
    return OTHER_ORDER if _is_as_much(case, read) else POSITION


def each_rank_reads_all(case: Case) -> bool:
    """Whether samples are not shared out over the ranks in some epoch."""
    return any(_is_whole(case.problem.workload, order) for order in case.orders or ())


def _is_whole(workload: Workload, order: Shares) -> bool:
    return len(order) > 1 and all(len(Counter(chain(*share))) == workload.samples for share in order)


def _not_once_in(workload: Workload, epoch: str, order: Shares) -> str | None:
    own = [Counter(chain(*share)) for share in order]
    times = sum(own, Counter[int]())
    repeated, unread = sum(count > 1 for count in times.values()), workload.samples - len(times)
    rest = f", and no rank reads {unread}" if unread else ""
    if _is_whole(workload, order):
        return f"each rank reads all samples of {epoch}; give each its own, as by `DistributedSampler`"
    for rank, one in enumerate(own):
        if twice := sum(count > 1 for count in one.values()):
            return (
                f"rank {rank} reads {_count(twice)} of {epoch} more than once{rest}; draw them without replacement, "
                "and go through all of them in each epoch"
            )
    if repeated:
        return (
            f"several ranks read the same {_count(repeated)} of {epoch}{rest}; shuffle with the same seed on all "
            "ranks, and give each a shard of its own"
        )
    return f"no rank reads {_count(unread)} of {epoch}; each must be trained on once in an epoch" if unread else None


def _somewhere(workload: Workload, orders: Orders) -> str | None:
    """What is not read once where several ends of the epochs leave as much of it in others; None if only one does."""
    shares = tuple(tuple(chain(*of_rank)) for of_rank in zip(*orders, strict=True))
    wrong = _wrong(workload, orders)
    alike = [other for other in _cuts(shares, workload.epochs) if _wrong(workload, other) == wrong]
    bad = [
        [epoch for epoch, order in enumerate(one) if _not_once_in(workload, "it", order) is not None] for one in alike
    ]
    if not any(bad) or all(one == bad[0] for one in bad):
        return None
    most, repeated = wrong
    if repeated:
        return f"{_count(repeated)} too many are read in an epoch; go through all of them once in each epoch"
    return f"{_count(most)} are missing in an epoch; each must be trained on once in an epoch"


def _count(samples: int) -> str:
    return f"{samples} sample{'s' * (samples != 1)}"


def ways(case: Case) -> tuple[Way, ...]:
    """Whether a trainer that shuffles has the same order in each epoch."""
    first, *others = case.orders or ((),)
    in_order = all([*chain(*share)] == sorted(chain(*share)) for share in first)
    return ("epoch_order=same",) if others and not in_order and all(order == first for order in others) else ()
