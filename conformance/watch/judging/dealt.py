"""Is what a `DistributedSampler` deals out to the ranks cut by rank already?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings

_FEWEST, _MOST = 32, 4096


_OWN = "in all epochs of a sampler that deals its data out to the ranks, no row came on two of them: what it was given "
_OWN += "may be cut by rank already, or be made anew on each"


@dataclass
class _Rank:
    """Of a sampler. epoch: that it began last. seen: of each row whose fingerprint `every` divides, the epoch in which
    it came last. again: those that came in several epochs. data: what the data set holds. whole: what that is cut from.
    site: where it was read."""

    epoch: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    every: int = 1
    data: int | None = None
    whole: int | None = None
    site: records.Site = None

    def add(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row % self.every == 0:
                if self.seen.setdefault(row, self.epoch) != self.epoch:
                    self.again.add(row)
                self.seen[row] = self.epoch
        while len(self.seen) > _MOST:
            self.every *= 2
            self.seen = {row: epoch for row, epoch in self.seen.items() if row % self.every == 0}
            self.again &= self.seen.keys()


class Dealt:
    """Of the processes that train together.

    A sampler that shuffles all data anew in each epoch deals a row to one rank in one epoch and to another one in the
    next. Where many rows come again, each on its own rank alone, and the ranks' data sets hold other parts of the same
    whole, every rank's sampler was given other data: it deals out a part of what the others do not have at all, and the
    rest is read by nobody. Data sets that hold the same may make other samples of it on each rank, and those of which
    no whole is known may each be drawn at random, as for a first try of a script.
    """

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._of: dict[int, dict[int, _Rank]] = defaultdict(lambda: defaultdict(_Rank))

    def feed(self, rank: int, record: records.Record) -> None:
        if isinstance(record, records.Epoch) and record.shuffles and record.replicas == self._ranks > 1:
            of = self._of[record.sampler][rank]
            of.epoch, of.data, of.whole = record.epoch, record.data, record.whole
        elif isinstance(record, records.Entered) and record.sampler in self._of and record.rows:
            of = self._of[record.sampler][rank]
            of.site = record.site
            of.add(record.rows)

    def finish(self) -> None:
        for by_rank in self._of.values():
            if len(by_rank) < self._ranks or any(len(of.again) < _FEWEST for of in by_rank.values()):
                continue
            if any(one.seen.keys() & other.seen.keys() for one, other in combinations(by_rank.values(), 2)):
                continue
            held = {of.data for of in by_rank.values()}
            if None not in held and len(held) < self._ranks:
                continue
            wholes = {of.whole for of in by_rank.values()}
            if None in held or None in wholes or len(wholes) > 1:
                self._findings.undecided(_OWN)
                continue
            says = "what the sampler deals out is cut by rank already: in all epochs, no row came on two ranks"
            effect = f"an epoch goes through 1/{self._ranks} of the data"
            site = next(iter(by_rank.values())).site
            self._findings.add(Finding("watch/dealt-once", says, None, tuple(sorted(by_rank)), site, effect))
