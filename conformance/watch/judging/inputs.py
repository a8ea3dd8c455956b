"""Do ranks read data of their own, and each epoch in an order of its own?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from conformance.watch import records
from conformance.watch.judging.compared import Alike, Compared
from conformance.watch.judging.findings import Finding, Findings

_SHARED = 0.4
_MOSTLY = 0.3
"""Of the backward passes: a sampler that comes more rarely is that of an evaluation."""

_TWICE = 2
"""So often an epoch may come by itself: one that is taken up again, or goes through the data only to look at it."""

_OTHERS = "and made other inputs of them, as augmentation does: a `DistributedSampler` gives each its own, unless each "
_OTHERS += "is to make something of all"


@dataclass
class _Rank:
    """orders: of each sampler, the epoch that it began last, the first batch of it, and how often it began so. waiting:
    the epochs that samplers have begun. again: of each sampler that began its first epoch again and again, the last
    such time; twice: what to say of one that did so once. sets: samplers that were told of another. several: those that
    had another batch in their epoch. passes: how many backward passes there were, and trained: before how many of them
    a sampler gave a batch."""

    orders: dict[int, tuple[int, records.Entered, int]] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    again: dict[int, Finding] = field(default_factory=dict)
    twice: dict[int, str] = field(default_factory=dict)
    sets: set[int] = field(default_factory=set)
    several: set[int] = field(default_factory=set)
    passes: int = 0
    trained: Counter[int] = field(default_factory=Counter)


class Inputs:
    """Of the processes that train together. is_sampled: whether a sampler deals the data out to the ranks."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._of: dict[int, _Rank] = defaultdict(_Rank)
        self._read, self._drawn = Compared(ranks), Compared(ranks)
        self._gradients = Alike()
        self._is_wrapped = False
        self._site: records.Site = None
        self.is_sampled = False

    def feed(self, rank: int, record: records.Record) -> None:
        of = self._of[rank]
        self.is_sampled |= isinstance(record, records.Epoch)
        if isinstance(record, records.Backward):
            of.passes += 1
            of.trained.update(record.samplers)
        elif isinstance(record, records.Epoch) and record.shuffles:
            of.waiting[record.sampler] = record.epoch
        elif isinstance(record, records.Entered) and record.rows:
            if record.wrapped and not self._is_wrapped:
                # What went through no wrapper until now was no shared training.
                self._is_wrapped = True
                begun = {number: _Rank(waiting=of.waiting) for number, of in self._of.items()}
                self._of = defaultdict(_Rank, begun)
                self._read, self._drawn = Compared(self._ranks), Compared(self._ranks)
                of = self._of[rank]
            if record.wrapped or not self._is_wrapped:
                self._order(of, rank, record)
                self._site = record.site
                self._read.enter(rank, tuple(record.rows))
                self._drawn.enter(rank, tuple(record.drawn))

    def averaged(self, *, is_alike: bool) -> None:
        """A step that uses the average of the ranks' gradients. is_alike: whether these are equal, as those of equal
        inputs are, unless it is the targets, the loss or what is drawn at random that differs."""
        self._gradients.add(is_alike=is_alike)

    def _order(self, of: _Rank, rank: int, entered: records.Entered) -> None:
        of.several |= {sampler for sampler, (_, first, _) in of.orders.items() if not _are_same(entered, first)}
        for sampler, epoch in of.waiting.items():
            if entered.sampler not in (None, sampler):
                # Another one, such as that of an evaluation.
                continue
            before, first, times = of.orders.get(sampler, (None, entered, 0))
            times = times + 1 if before == epoch and _are_same(entered, first) else 1
            if before not in (None, epoch):
                # Who sets an epoch, if not each time, may go through each several times on purpose.
                of.again.pop(sampler, None)
                of.sets.add(sampler)
            of.orders[sampler] = epoch, entered, times
            says = f"the sampler began epoch {epoch} {times} times, each with the same batch"
            if times > _TWICE and sampler not in of.sets:
                effect = f"{times} epochs begin with the same {len(entered.rows)} samples"
                of.again[sampler] = Finding("watch/new-order", says, None, (rank,), entered.site, effect)
                of.twice.pop(sampler, None)
            elif times == _TWICE:
                of.twice[sampler] = says
        of.waiting.clear()

    def finish(self, *, averages: bool) -> None:
        """averages: whether the ranks are known to average gradients, so that they train one model."""
        for of in self._of.values():
            for says in of.twice.values():
                self._findings.note(f"{says}, as one without `set_epoch` does, or one that takes up an epoch again")
            for sampler, finding in of.again.items():
                # One batch of all has no order.
                if sampler in of.several and of.trained[sampler] > _MOSTLY * of.passes:
                    self._findings.add(finding)
        if self._ranks == 1 or not averages:
            return
        read, drawn = self._read, self._drawn
        if read.are_the_same:
            self._judge_same(read)
        elif (found := read.shared())[0] > _SHARED:
            says = f"before any sample came twice on a rank, {found[0]:.0%} of its samples came on another rank, too"
            effect = f"about {found[0]:.0%} of the samples count more than once in what should be one epoch"
            self._findings.add(Finding("watch/own-data", says, None, found[1], self._site, effect))
        elif drawn.are_the_same and not drawn.are_few:
            self._findings.undecided(f"all ranks drew the same samples {drawn.said()}, {_OTHERS}")
        elif (share := drawn.shared()[0]) > _SHARED:
            self._findings.undecided(f"{share:.0%} of the samples that a rank drew were drawn on another, {_OTHERS}")

    def _judge_same(self, read: Compared) -> None:
        if read.are_few:
            self._findings.note("all ranks were fed the same few batches, again and again")
        elif not (self._gradients.are_most or (self._gradients.are_last and not read.alike.are_most)):
            self._findings.undecided("ranks were fed the same inputs, and computed other gradients of them")
        else:
            says = f"all ranks were fed the same inputs {read.said()}"
            effect = f"the ranks together train on 1/{self._ranks} of the samples that they would each on its own"
            everyone = tuple(range(self._ranks))
            self._findings.add(Finding("watch/own-data", says, None, everyone, self._site, effect))


def _are_same(one: records.Entered, other: records.Entered) -> bool:
    """Whether the same batch goes into a model, or another one that is made of the same samples."""
    return one.rows == other.rows or (one.drawn == other.drawn != [])
