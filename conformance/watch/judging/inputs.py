"""Do ranks read data of their own, and each epoch in an order of its own?"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import combinations

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings
from conformance.watch.judging.rows import Rows

_FEWEST_BATCHES, _ALIKE = 3, 0.9
_SHARED = 0.4
_MOST_BEHIND = 1000
_MOSTLY = 0.3
"""Of the backward passes: a sampler that comes more rarely is that of an evaluation."""

_TWICE = 2
"""So often an epoch may come by itself: one that is taken up again, or goes through the data only to look at it."""


@dataclass
class _Rank:
    """fed: batches that the other ranks have not read yet. rows: those read until one came again, but for batches that
    all ranks read at the same time. has_repeated: whether one came. orders: of each sampler, the epoch that it began
    last, the first batch of it, and how often it began so. waiting: the epochs that samplers have begun. again: of each
    sampler that began its first epoch again and again, the last such time. sets: samplers that were told of another.
    several: those that had another batch in their epoch. passes: how many backward passes there were, and trained:
    before how many of them a sampler gave a batch."""

    fed: deque[tuple[int, ...]] = field(default_factory=lambda: deque(maxlen=_MOST_BEHIND))
    rows: Rows = field(default_factory=Rows)
    has_repeated: bool = False
    orders: dict[int, tuple[int, tuple[int, ...], int]] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    again: dict[int, Finding] = field(default_factory=dict)
    sets: set[int] = field(default_factory=set)
    several: set[int] = field(default_factory=set)
    passes: int = 0
    trained: Counter[int] = field(default_factory=Counter)


class Inputs:
    """Of the processes that train together. is_sampled: whether a sampler deals the data out to the ranks."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._of: dict[int, _Rank] = defaultdict(_Rank)
        self._compared = self._alike = 0
        self._gradients = self._gradients_alike = 0
        self._different: set[tuple[int, ...]] = set()
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
                self._of.clear()
                of = self._of[rank]
            if record.wrapped or not self._is_wrapped:
                self._order(of, rank, record)
                self._enter(of, tuple(record.rows), record.site)

    def averaged(self, *, is_alike: bool) -> None:
        """A step that uses the average of the ranks' gradients. is_alike: whether these are equal, as those of equal
        inputs are, unless it is the targets, the loss or what is drawn at random that differs."""
        self._gradients += 1
        self._gradients_alike += is_alike

    def _enter(self, of: _Rank, rows: tuple[int, ...], site: records.Site) -> None:
        of.fed.append(rows)
        self._site = site
        if len(self._of) == self._ranks and all(other.fed for other in self._of.values()):
            fed = [other.fed.popleft() for other in self._of.values()]
            is_alike = all(one == fed[0] for one in fed)
            self._compared += 1
            self._alike += is_alike
            for other, read in zip(self._of.values(), fed, strict=True):
                # What all read together may be no data of the training, as that of a learning-rate finder.
                if not is_alike and not other.has_repeated:
                    other.has_repeated = not other.rows.add(read)
            if len(self._different) < _FEWEST_BATCHES:
                self._different.add(fed[0])

    def _order(self, of: _Rank, rank: int, entered: records.Entered) -> None:
        rows = tuple(entered.rows)
        of.several |= {sampler for sampler, (_, first, _) in of.orders.items() if rows != first}
        for sampler, epoch in of.waiting.items():
            if entered.sampler not in (None, sampler):
                # Another one, such as that of an evaluation.
                continue
            *before, times = of.orders.get(sampler, (None, None, 0))
            times = times + 1 if before == [epoch, rows] else 1
            if before[0] not in (None, epoch):
                # Who sets an epoch, if not each time, may go through each several times on purpose.
                of.again.pop(sampler, None)
                of.sets.add(sampler)
            of.orders[sampler] = epoch, rows, times
            says = f"the sampler began epoch {epoch} {times} times, each with the same batch"
            if times > _TWICE and sampler not in of.sets:
                effect = f"{times} epochs begin with the same {len(rows)} samples"
                of.again[sampler] = Finding("watch/new-order", says, None, (rank,), entered.site, effect)
            elif times == _TWICE:
                self._findings.note(f"{says}, as one without `set_epoch` does, or one that takes up an epoch again")
        of.waiting.clear()

    def finish(self, *, averages: bool) -> None:
        """averages: whether the ranks are known to average gradients, so that they train one model."""
        for of in self._of.values():
            for sampler, finding in of.again.items():
                # One batch of all has no order.
                if sampler in of.several and of.trained[sampler] > _MOSTLY * of.passes:
                    self._findings.add(finding)
        if self._ranks == 1 or not averages:
            return
        everyone = tuple(range(self._ranks))
        if self._compared >= _FEWEST_BATCHES and self._alike >= _ALIKE * self._compared:
            if len(self._different) < _FEWEST_BATCHES:
                self._findings.note("all ranks were fed the same few batches, again and again")
                return
            if self._gradients_alike < _ALIKE * self._gradients:
                self._findings.undecided("ranks were fed the same inputs, and computed other gradients of them")
                return
            says = f"all ranks were fed the same inputs in {self._alike} of {self._compared} forwards"
            effect = f"the ranks together train on 1/{self._ranks} of the samples that they would each on its own"
            self._findings.add(Finding("watch/own-data", says, None, everyone, self._site, effect))
            return
        pairs = combinations(sorted(self._of), 2)
        found = [(self._of[one].rows.shared(self._of[other].rows), (one, other)) for one, other in pairs]
        shared, ranks = max(found, default=(0.0, ()))
        if shared > _SHARED:
            says = f"before any sample came twice on a rank, {shared:.0%} of its samples came on another rank, too"
            effect = f"about {shared:.0%} of the samples count more than once in what should be one epoch"
            self._findings.add(Finding("watch/own-data", says, None, ranks, self._site, effect))
