"""Detects epochs that repeat one shuffled order, and samplers that split data which was already split by rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, Said, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.same_samples import Rows
from conformance.watch.judging.stream import Stream

_K = TypeVar("_K")
_V = TypeVar("_V")

_MOSTLY = 0.3
"""Share of the backward passes. A sampler that is used more rarely belongs to an evaluation."""

_OFTEN = 3
"""Epochs with one order that are surely wrong. An epoch may begin twice: on resuming, or to inspect the data first."""

_FEWEST = 32
"""Rows that must repeat on their own rank only. The probability by chance is 2 to the minus this number."""

_MOST = 64
"""Limit of samplers and data sets that are kept: a script may make a sampler for each epoch."""


@dataclass(eq=False)
class _Order:
    """The order of the epochs of a sampler, or of all samplers of the same data.

    sampler, first: the last sampler, and the first batch of its epoch. times: epochs in a row that began with this
    batch. others: epochs that began with another batch than the one before. repeated: the last repetition, and its
    line. is_known: it is surely wrong, because samples are known to be equal. sets_epoch: `set_epoch` was called with
    several epochs. deals: it is a `DistributedSampler`; others may have one order on purpose. trained: backward passes
    on its batches. are_mixed: samplers of the same data take turns."""

    sampler: int = -1
    first: records.First | None = None
    times: int = 1
    others: int = 0
    repeated: tuple[Said, records.Site] | None = None
    is_known: bool = False
    sets_epoch: bool = False
    deals: bool = False
    trained: int = 0
    are_mixed: bool = False

    def begin(self, first: records.First) -> None:
        before, self.first = self.first, first
        self.sets_epoch |= before is not None and before.epoch != first.epoch
        # Equal rows may be masks or paddings.
        are_same_rows = before is not None and before.rows == first.rows and len({*first.rows}) > 1
        are_numbered = before is not None and bool(before.drawn and first.drawn)
        are_same = before is not None and (before.drawn == first.drawn if are_numbered else are_same_rows)
        if before is None or not are_same:
            self.times = 1
            self.others += before is not None
            return
        self.times += 1
        # Without labels, different samples may have the same indices.
        is_known = self.times >= _OFTEN and (are_same_rows or first.labelled)
        if is_known or not self.is_known:
            samples = len(first.drawn or first.rows)
            code = "data.same-shuffle" if first.epoch is None else "data.same-order"
            says = said(code, times=self.times, samples=samples)
            self.repeated = says, first.site
        self.is_known |= is_known


@dataclass
class _Rank:
    """A rank's backward passes and orders. samplers: for each that shuffles, its order and that of its data. data: the
    orders of known data sets."""

    passes: int = 0
    samplers: dict[int, list[_Order]] = field(default_factory=dict)
    data: dict[int, _Order] = field(default_factory=dict)

    def know(self, epoch: records.Epoch) -> None:
        orders = self.samplers.pop(epoch.sampler, None) or [_Order()]
        if not epoch.shuffles:
            return
        orders = orders[:1]
        orders[0].deals |= bool(epoch.replicas)
        if epoch.data is not None:
            orders.append(self.data.pop(epoch.data, _Order(deals=True)))
            _keep(self.data, epoch.data, orders[1])
        _keep(self.samplers, epoch.sampler, orders)

    def use(self, samplers: list[int]) -> None:
        """Takes a backward pass on batches of these samplers."""
        self.passes += 1
        known = {(sampler, order) for sampler in samplers for order in self.samplers.get(sampler, ())}
        for order in {order for _, order in known}:
            order.trained += 1
        for sampler, order in known:
            order.are_mixed |= sampler != order.sampler

    def begin(self, first: records.First) -> None:
        for place, order in enumerate(self.samplers.get(first.sampler, ())):
            # The order of data only counts for a new sampler in each epoch.
            if place == 0 or order.sampler != first.sampler:
                order.begin(first)
            order.sampler = first.sampler

    @property
    def orders(self) -> list[_Order]:
        of_samplers = [order for orders in self.samplers.values() for order in orders]
        return [*dict.fromkeys([*of_samplers, *self.data.values()])]


@dataclass
class _Part:
    """The part of the data that a sampler deals to a rank. rows: the rows read. data: the content of its data set.
    whole: the content of the data set that this one is cut from. made: where the sampler was made. site: of a forward
    with its rows."""

    rows: Rows = field(default_factory=Rows)
    epoch: int = 0
    data: int | None = None
    whole: int | None = None
    made: records.Site = None
    site: records.Site = None


class Epochs(Chapter):
    """Judges the epochs of ranks that train together.

    samplers: by rank, those with epochs. passes: the number of backward passes with and without their batches. dealt:
    the parts of each sampler, by rank."""

    fed = (records.Optimizer, records.Backward, records.Epoch, records.First, records.Entered)

    def __init__(self, ranks: int, findings: Findings) -> None:
        super().__init__(findings)
        self._ranks = ranks
        self._samplers: dict[tuple[int, int], None] = {}
        self._passes = Counter[bool]()
        self._of: dict[int, _Rank] = defaultdict(_Rank)
        self._dealt: dict[int, dict[int, _Part]] = {}

    @property
    def is_sampled(self) -> bool:
        """Whether a sampler deals out the data of most backward passes."""
        return self._passes[True] > self._passes[False]

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        of = self._of[rank]
        match record:
            case records.Optimizer():
                # Another training, such as in a hyperparameter search, may repeat the same epochs.
                for order in of.orders:
                    order.first = None
            case records.Backward():
                of.use(record.samplers)
                self._passes[any((rank, sampler) in self._samplers for sampler in record.samplers)] += 1
            case records.Epoch():
                if record.replicas:
                    _keep(self._samplers, (rank, record.sampler), None)
                of.know(record)
                self._deal(rank, record)
            case records.First(is_all=False):
                of.begin(record)
            case records.Entered(sampler=int(sampler)) if sampler in self._dealt and record.rows:
                part = self._dealt[sampler].setdefault(rank, _Part())
                part.site = record.site
                part.rows.add(record.rows, part.epoch)

    def _deal(self, rank: int, epoch: records.Epoch) -> None:
        if epoch.shuffles and epoch.replicas == self._ranks > 1:
            by_rank = self._dealt.get(epoch.sampler) or {}
            part = by_rank.setdefault(rank, _Part())
            part.epoch, part.data, part.whole = epoch.epoch or 0, epoch.data, epoch.whole
            part.made = epoch.made
            _keep(self._dealt, epoch.sampler, by_rank)

    def finish(self, end: End) -> None:
        for rank, of in self._of.items():
            for order in of.orders:
                if not order.are_mixed and order.trained > _MOSTLY * of.passes:
                    self._judge_order(rank, order)
        if end.averages:
            for by_rank in self._dealt.values():
                self._judge_dealt(by_rank)

    def _judge_order(self, rank: int, order: _Order) -> None:
        self._findings.seen[Property.DATA] += order.others
        if order.repeated is None:
            return
        says, site = order.repeated
        if order.is_known and order.deals and not order.sets_epoch:
            # A script that calls `set_epoch` may repeat epochs on purpose.
            effect = said("data.same-order.effect", times=says.values["times"], again=says.values["times"] - 1)
            self._findings.add(Finding("watch/new-order", says, None, (rank,), site, effect))
        else:
            self._findings.leave_open(says, site=site)

    def _judge_dealt(self, by_rank: dict[int, _Part]) -> None:
        """Reports a sampler whose data set differs between ranks. A sampler that shuffles the same data on all ranks
        deals a row to different ranks in different epochs, so each row would not repeat on its own rank only.

        Parts of one whole are wrong: the sampler deals out only a part of each part. Without a known whole, each rank
        may have drawn its data at random. Ranks with the same data may augment it differently."""
        parts = by_rank.values()
        samples = min(len(part.rows.again) for part in parts)
        held = {part.data for part in parts}
        are_other = None in held or len(held) == self._ranks
        if len(parts) < self._ranks or samples < _FEWEST or not are_other:
            return
        if any(one.rows.common(other.rows) for one, other in combinations(parts, 2)):
            return
        first = next(iter(parts))
        says, site = said("data.cut-twice", samples=samples), first.made or first.site
        wholes = {part.whole for part in parts}
        if None in held | wholes or len(wholes) > 1:
            self._findings.leave_open(says, site=site)
            return
        effect = said("data.cut-twice.effect", ranks=self._ranks)
        self._findings.add(Finding("watch/dealt-once", says, None, tuple(sorted(by_rank)), site, effect))


def _keep(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Keeps the latest few values."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > _MOST:
        del kept[next(iter(kept))]
