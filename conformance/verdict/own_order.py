"""Where the order of samples is the trainer's own: in which order the ranks have read them, and how often each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Any

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome
from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.lineage import without_copies
from conformance.trace.hindsight.rehearsal import without_rehearsals
from conformance.trace.hindsight.training import forwarded, trained
from conformance.verdict.evidence import cleared
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
    ranks = [rank.events for rank in outcome.recorded or outcome.ranks]
    found = [_read(spec, ranks, *how) for how in product((False, True), repeat=3)]
    orders = [order for read in found if read for order in _orders(case, read)]
    if not orders:
        return case, outcome
    case = replace(case, orders=min(orders, key=lambda one: _wrong(case.problem.workload, one)))
    return case, outcome.placed(case.spec()) if outcome.recorded else outcome


def _read(
    spec: Mapping[str, Any],
    ranks: Sequence[Sequence[dict[str, Any]]],
    is_last: bool,
    is_once: bool,
    without_cleared: bool,
) -> list[list[int]] | None:
    """The samples that each rank trained on, in order; None if the forwards of one do not show them. All rows differ,
    so the number of a row is that of its sample.

    ``is_last``: what goes forward before the samples of a step's window, or after the last step, is no part of it, as
    in an evaluation that goes backward. ``is_once``: what goes forward again before a step is the same micro-batch, as
    in a forward that is recomputed; else it is read twice. ``without_cleared``: forwards whose gradients were cleared
    do not count. Trainers that keep gradients elsewhere clear those that train, too.
    """
    found = []
    for events in ranks:
        lines = without_rehearsals(without_copies(events), spec["steps"], spec["steps"])
        trains = trained(lines) - (cleared(events) if without_cleared else set())
        rows, own = forwarded(lines), list[int | None]()
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


def _orders(case: Case, read: Sequence[Sequence[int]]) -> Iterator[Orders]:
    """What was read, in epochs: as long as planned, or all equally long."""
    workload = case.problem.workload
    planned = [sum(map(len, share)) for share in case.spec()["orders"][0]]
    size = case.problem.layout.micro_batch_size
    yield tuple(_epochs(read, planned, size))
    if not any(len(own) % workload.epochs for own in read):
        yield tuple(_epochs(read, [len(own) // workload.epochs for own in read], size))


def _epochs(read: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> Iterator[Shares]:
    """The micro-batches of each rank in each epoch; ``lengths``: how many samples a rank has in one."""
    for epoch in range(max(-(-len(own) // length) for own, length in zip(read, lengths, strict=True))):
        yield tuple(
            micro_batches(own[epoch * length : (epoch + 1) * length], size)
            for own, length in zip(read, lengths, strict=True)
        )


def _wrong(workload: Workload, orders: Orders) -> int:
    """How many samples are read too often in all epochs together, or too seldom, whichever are more."""
    asked: list[Counter[int]] = [Counter(range(workload.samples))] * workload.epochs
    found = [Counter(chain.from_iterable(chain(*order))) for order in orders]
    length = max(len(asked), len(found))
    asked, found = ([*one, *[Counter[int]()] * (length - len(one))] for one in (asked, found))
    both = ((asked, found), (found, asked))
    return max(sum((one - other).total() for one, other in zip(*two, strict=True)) for two in both)


def not_once(case: Case) -> str | None:
    """Which samples all ranks together have read otherwise than once in an epoch, in words; None if none."""
    workload, orders = case.problem.workload, case.orders or ()
    for epoch, order in enumerate(orders[: workload.epochs]):
        own = [Counter(chain(*share)) for share in order]
        times = sum(own, Counter[int]())
        repeated, unread = sum(count > 1 for count in times.values()), workload.samples - len(times)
        rest = f", and no rank reads {unread}" if unread else ""
        if len(own) > 1 and all(len(one) == workload.samples for one in own):
            return f"each rank reads all samples of epoch {epoch}; give each its own, as by `DistributedSampler`"
        for rank, one in enumerate(own):
            if twice := sum(count > 1 for count in one.values()):
                return (
                    f"rank {rank} reads {_count(twice)} of epoch {epoch} more than once{rest}; draw them without "
                    "replacement, and go through all of them in each epoch"
                )
        if repeated:
            return (
                f"several ranks read the same {_count(repeated)} of epoch {epoch}{rest}; shuffle with the same seed on "
                "all ranks, and give each a shard of its own"
            )
        if unread:
            return f"no rank reads {_count(unread)} of epoch {epoch}; each must be trained on once in an epoch"
    if len(orders) < workload.epochs:
        return f"epoch {len(orders)} is never read, and this case asks for {workload.epochs} epochs"
    if len(orders) > workload.epochs:
        return f"training goes on when all samples have been read {workload.epochs} times, once in each epoch"
    return None


def _count(samples: int) -> str:
    return f"{samples} sample{'s' * (samples != 1)}"


def ways(case: Case) -> tuple[Way, ...]:
    """Whether a trainer that shuffles has the same order in each epoch."""
    first, *others = case.orders or ((),)
    in_order = all([*chain(*share)] == sorted(chain(*share)) for share in first)
    return ("epoch_order=same",) if others and not in_order and all(order == first for order in others) else ()
