"""Judges the order in which the ranks read the samples: of each epoch, the trainer's own, or all epochs as one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, combinations, pairwise, product, zip_longest
from typing import Any

from conformance.cases.case import Case
from conformance.runner.outcome import Outcome
from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.lineage import without_copies, without_rehearsals
from conformance.trace.hindsight.training import forwarded, trained
from conformance.trace.lives import Events, lives
from conformance.verdict.evidence import RankEvidence, cleared, named
from conformance.verdict.judgement import ONCE, OTHER_ORDER, POSITION, Told
from conformance.workloads.behaviour import Way
from conformance.workloads.layout import Orders, Shares, micro_batches
from conformance.workloads.reading_plan import order_of, rows
from conformance.workloads.workload import Workload


def in_first_order(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if later epochs wrongly have the order of the first one; None if the rows do not show it."""
    read = [rank.trained for rank in ranks if rank.trained is not None]
    if not (case.problem.workload.shuffle and case.problem.in_order) or len(read) < len(ranks):
        return None
    planned, batches = [frozenset(rows) for rows in _planned(case)], case.problem.workload.windows_of_epoch
    found = [frozenset[int]().union(*(of_rank.get(at, ()) for of_rank in read)) for at in range(len(planned))]
    other = [window for window, rows in enumerate(found) if rows != planned[window]]
    if not other or any(found[window] != planned[window % batches] for window in range(other[0], len(planned))):
        return None
    return Told(
        f"epoch {other[0] // batches} has the order of epoch 0, from window {other[0]} on",
        "call `sampler.set_epoch(epoch)` before each epoch",
    )


def resumed_in_other_order(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if all ranks resume in the order of another epoch; None if the rows do not show it."""
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
        owns = {other: [row_of[sample] for sample in order_of(spec, number, other)[done:]] for other in found}
        found = {other for other, own in owns.items() if read and read[: len(own)] == own}
    if epoch in found or len(found) != 1:
        return None
    return Told(
        f"training resumed in epoch {epoch} reads the order of epoch {min(found)}",
        "save the epoch, and call the sampler's `set_epoch`, also at the end of an epoch",
    )


def in_orders_of_their_own(case: Case, ranks: Sequence[RankEvidence]) -> Told | None:
    """A sentence if two ranks read the same samples in different windows of an epoch, while no rank reads some others;
    None if not, or the rows do not show it. With too many steps, windows do not match the plan."""
    too_many = any(len(rank.attempts) > len(case.problem.windows) for rank in ranks)
    if not case.problem.in_order or too_many or any(rank.trained is None for rank in ranks):
        return None
    if all(_reads_its_own(case, rank) for rank in ranks):
        return None
    planned, batches = _planned(case), case.problem.workload.windows_of_epoch
    # A last window may be filled up by repeating samples.
    whole = [window for window, rows in enumerate(planned) if rows.total() == case.problem.workload.batch_size]
    for epoch in range(case.problem.workload.epochs):
        often = sum(planned[epoch * batches : (epoch + 1) * batches], Counter[int]())
        read = [{at: rows for at, rows in (one.trained or {}).items() if at // batches == epoch} for one in ranks]
        unread = often.keys() - chain.from_iterable(rows for own in read for rows in own.values())
        places = [{row: at for at in whole for row in own.get(at, ())} for own in read]
        for (one, mine), (two, others) in combinations(zip(ranks, places, strict=True), 2) if unread else ():
            both = [row for row in mine.keys() & others.keys() if often[row] == 1 and mine[row] != others[row]]
            if both:
                return Told(
                    f"{named([one.number, two.number])} read epoch {epoch} in different orders: both read {len(both)} "
                    f"samples, in different windows, and no rank reads {len(unread)}",
                    "give the samplers of all ranks the same seed, and the same epoch with `set_epoch`",
                )
    return None


def _reads_its_own(case: Case, rank: RankEvidence) -> bool:
    """Whether a rank reads only its own windows, epoch after epoch; it may leave some out, or read beyond the plan."""
    row_of, epoch = case.problem.workload.rows, 0
    own: dict[int, list[set[int]]] = defaultdict(list)
    for window in case.problem.windows:
        if rank.number < window.world_size:
            own[window.epoch].append({row_of[window.samples[at]] for at in chain(*window.shares[rank.number])})
    for event in rank.events.forwards:
        while epoch in own and not any(share.issuperset(event.rows) for share in own[epoch]):
            epoch += 1
    return epoch == max(own, default=None)


def _planned(case: Case) -> list[Counter[int]]:
    """The rows of each window."""
    row_of = case.problem.workload.rows
    return [Counter(row_of[at] for at in window.samples) for window in case.problem.windows]


def as_read(case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
    """The case with the order in which the ranks read the samples, and the outcome with events placed by it.

    Returns both unchanged if the case gives the order, a rank did not finish, or forwards do not show their samples.
    """
    if not case.problem.workload.own_order or not all(rank.finished for rank in outcome.ranks):
        return case, outcome
    spec = case.spec()
    ranks = [lives(case.resumed_at, rank.events) for rank in outcome.recorded or outcome.ranks]
    found = [_read(spec, ranks, *how) for how in product((False, True), repeat=3)]
    # Of several possible ends of epochs, take those with the fewest repeated samples.
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
    """The samples that each rank trained on, in order, in all its lives; None if the forwards of a rank do not show
    them. All rows differ, so row numbers are sample numbers.

    ``is_last``: forwards before the samples of a step's window, or after the last step, do not count, such as an
    evaluation that goes backward. ``is_once``: a repeated forward before a step is the same micro-batch, such as a
    recomputed one; else it is read twice. ``without_cleared``: forwards whose gradients were cleared do not count.
    Trainers that keep gradients elsewhere also clear training gradients.
    """
    found, length = [], spec["accumulation"] * spec["micro_batch_size"]
    for life_of_rank in ranks:
        own = list[int | None]()
        for first, events in zip((0, spec["resumed_at"]), life_of_rank, strict=False):
            end = spec["steps"] if len(life_of_rank) == 1 or first else spec["resumed_at"]
            lines = without_rehearsals(without_copies(events), end - first, end - first)
            rows, unused = forwarded(lines), cleared(events) if without_cleared else set()
            for stretch in stretches(lines, trained(lines) - unused):
                forwards = [rows[forward] or (None,) for forward in stretch.forwards]
                of_step = list(chain.from_iterable(dict.fromkeys(forwards) if is_once else forwards))
                if is_last:
                    of_step = [] if stretch.end is None else of_step[-length:]
                own += of_step
        found.append([number for number in own if number is not None])
        if not own or None in own:
            return None
    return found


#: Beyond this multiple of the planned samples, cutting into epochs says only that training does not stop.
_MOST = 3


def _orders(case: Case, read: Sequence[Sequence[int]]) -> Iterator[Orders]:
    """Yields the read samples cut into epochs: of the planned length and, if the totals differ, at any whole windows or
    micro-batches, or all of equal length."""
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
    """Whether each rank read as many samples as planned, so its epochs end at the planned places."""
    workload = case.problem.workload
    return all(len(own) * len(read) == workload.samples * workload.epochs for own in read)


def _epochs(read: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> Iterator[Shares]:
    """Yields the micro-batches of each rank in each epoch; ``lengths``: the samples of each rank in an epoch."""
    for epoch in range(max(-(-len(own) // length) for own, length in zip(read, lengths, strict=True))):
        yield tuple(
            micro_batches(own[epoch * length : (epoch + 1) * length], size)
            for own, length in zip(read, lengths, strict=True)
        )


def _cuts(shares: Shares, epochs: int) -> Iterator[Orders]:
    """Yields all cuts of the read samples into this number of epochs, at the same micro-batches on all ranks."""
    length = max(map(len, shares))
    for ends in combinations(range(1, length), epochs - 1):
        parts = list(pairwise((0, *ends, length)))
        yield tuple(tuple(share[begin:end] for share in shares) for begin, end in parts)


def _wrong(workload: Workload, orders: Orders) -> tuple[int, int]:
    """The larger of the samples read too often and too seldom over all epochs, and the number read too often."""
    asked = [Counter(range(workload.samples))] * workload.epochs
    found = [Counter(chain.from_iterable(chain(*order))) for order in orders]
    pairs = list(zip_longest(found, asked, fillvalue=Counter[int]()))
    repeated, unread = sum((one - two).total() for one, two in pairs), sum((two - one).total() for one, two in pairs)
    return max(repeated, unread), repeated


def not_once(case: Case) -> Told | None:
    """A sentence on samples that the ranks together do not read exactly once per epoch; None if there are none."""
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
        return Told(f"epoch {len(orders)} is never read, and this case asks for {workload.epochs} epochs")
    if len(orders) > workload.epochs:
        return Told(f"training continues after {workload.epochs} complete epochs")
    return None


def lost_at_stop(case: Case) -> str | None:
    """The diagnosis if only a resume explains samples that are not read once per epoch: before the stop, and after it,
    the counts of all samples differ by at most one."""
    stop, orders = case.resumed_at, case.orders or ()
    if stop is None or len({*case.world_sizes}) > 1:
        return None
    read = [list(chain(*chain(*of_rank))) for of_rank in zip(*orders, strict=True)]
    lives = Counter[int](), Counter[int]()
    for rank, own in enumerate(read):
        before = sum(len(share) for window in case.problem.windows[:stop] for share in window.shares[rank])
        lives[0].update(own[:before])
        lives[1].update(own[before:])
    often = [[times[sample] for sample in range(case.problem.workload.samples)] for times in lives]
    if any(max(one) - min(one) > 1 for one in often):
        return None
    return OTHER_ORDER if _is_as_much(case, read) else POSITION


def each_rank_reads_all(case: Case) -> bool:
    """Whether each rank reads all samples in some epoch."""
    return any(_is_read_by_each(case.problem.workload, order) for order in case.orders or ())


def _is_read_by_each(workload: Workload, order: Shares) -> bool:
    return len(order) > 1 and all(len(Counter(chain(*share))) == workload.samples for share in order)


def _not_once_in(workload: Workload, epoch: str, order: Shares) -> Told | None:
    own = [Counter(chain(*share)) for share in order]
    times = sum(own, Counter[int]())
    repeated, unread = sum(count > 1 for count in times.values()), workload.samples - len(times)
    rest = f", and no rank reads {unread}" if unread else ""
    if _is_read_by_each(workload, order):
        advice = "split the samples over the ranks, such as with `DistributedSampler`"
        return Told(f"each rank reads all samples of {epoch}", advice)
    for rank, one in enumerate(own):
        if twice := sum(count > 1 for count in one.values()):
            return Told(
                f"rank {rank} reads {_count(twice)} of {epoch} more than once{rest}",
                "draw without replacement, and read all samples in each epoch",
            )
    if repeated:
        return Told(
            f"several ranks read the same {_count(repeated)} of {epoch}{rest}",
            "shuffle with the same seed on all ranks, and give each rank its own shard",
        )
    return Told(f"no rank reads {_count(unread)} of {epoch}", ONCE) if unread else None


def _somewhere(workload: Workload, orders: Orders) -> Told | None:
    """A sentence without an epoch's number, if several possible ends of epochs blame different epochs; else None."""
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
        return Told(f"an epoch reads {_count(repeated)} too many", "read each sample once in an epoch")
    return Told(f"an epoch misses {_count(most)}", ONCE)


def _count(samples: int) -> str:
    return f"{samples} sample{'s' * (samples != 1)}"


def epoch_ways(case: Case) -> tuple[Way, ...]:
    """The choice of a trainer that shuffles but has the same order in each epoch."""
    first, *others = case.orders or ((),)
    in_order = all([*chain(*share)] == sorted(chain(*share)) for share in first)
    return ("epoch_order=same",) if others and not in_order and all(order == first for order in others) else ()


def as_one(case: Case) -> Case | None:
    """The case for a trainer that reads all epochs as one; None if its windows are the same."""
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
    """Whether the steps of each rank end the windows of ``other``, and not those of ``case``. A short last window may
    be dropped. A trainer that drops the short windows of each epoch may end some of both."""

    def ends(one: Case, rank: int) -> set[int]:
        return set(accumulate(sum(map(len, window.shares[rank])) for window in one.problem.windows))

    is_own, last = True, other.problem.windows[-1]
    for rank, of_rank in enumerate(zip(*(life.recorded for life in outcome.lives or (outcome,)), strict=True)):
        rows, planned = set(_rows_before_steps([one.events for one in of_rank])), ends(other, rank)
        dropped = {max(planned)} if last.length < last.nominal else set[int]()
        if not planned - dropped <= rows <= planned:
            return False
        is_own &= rows <= ends(case, rank)
    return not is_own


def _rows_before_steps(lives: Sequence[Sequence[dict[str, Any]]]) -> Iterator[int]:
    """Yields the number of rows that a rank has trained on at each of its steps, life after life."""
    count = 0
    for lines in lives:
        rows = forwarded(lines)
        for stretch in stretches(lines, trained(lines)):
            count += sum(len(rows[forward]) for forward in stretch.forwards)
            if stretch.end is not None:
                yield count
