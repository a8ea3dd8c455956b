"""Whether ranks, and the micro-batches of a step, see other samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import combinations

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Window

_FEWEST = 3
"""A first try may feed all ranks one or two batches, again and again."""

_MOSTLY = 0.9
"""A few batches may be other ones, such as the last of an epoch."""

_SHARED = 0.4
"""Ranks that each go through all data come to share all of it. Parts drawn with different seeds, as by `random_split`,
share less."""

_PADDED = 0.1
"""A `DistributedSampler` repeats a few samples, so that all ranks get the same number."""

_MOST_BEHIND = 1000
_NEAR = 1e-5
"""Rounding of the same gradient, computed twice."""


class _Compared:
    """Batches of several ranks, compared in the order in which each rank reads them.

    seen, alike: how many were known on all ranks, and how many of these were the same. fed: batches that other ranks
    have not read yet. rows: those of each rank until one comes again. What all ranks read together is not among them:
    it may belong to a learning-rate finder."""

    def __init__(self, ranks: int) -> None:
        self.seen = self.alike = 0
        self._fed: list[deque[Sequence[int]]] = [deque(maxlen=_MOST_BEHIND) for _ in range(ranks)]
        self._rows = [Rows() for _ in range(ranks)]
        self._repeated: set[int] = set()

    def enter(self, rank: int, rows: Sequence[int]) -> bool:
        """rows: of a batch; () if they are not known. Returns whether all ranks have read the same."""
        self._fed[rank].append(rows)
        if not all(self._fed):
            return False
        fed = [batches.popleft() for batches in self._fed]
        is_alike = all(fed) and len({*fed}) == 1
        self.seen += all(bool(read) for read in fed)
        self.alike += is_alike
        if not is_alike:
            self._keep(fed)
        return is_alike

    def _keep(self, fed: Sequence[Sequence[int]]) -> None:
        for rank, read in enumerate(fed):
            if rank in self._repeated or not self._rows[rank].are_new(read):
                self._repeated.add(rank)
            else:
                self._rows[rank].add(read)

    @property
    def alike_share(self) -> float:
        return self.alike / max(self.seen, 1)

    def shared(self) -> tuple[float, tuple[int, ...]]:
        """The largest share of its rows that a rank has in common with another one, and these two."""
        pairs = combinations(range(len(self._rows)), 2)
        return max(((self._rows[one].shared(self._rows[other]), (one, other)) for one, other in pairs), default=(0, ()))


class Samples(Chapter):
    """Compares what ranks that train together read.

    inputs: all inputs of models. drawn: the samples that these are made of, whatever augmentation does to them.
    batches: a few that all ranks read. steps, alike: how many steps average gradients, and in how many of them those of
    the ranks are equal."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        super().__init__(findings)
        self._ranks = ranks
        self._is_wrapped = False
        self._site: records.Site = None
        self._steps = self._alike = 0
        self._begin()

    def _begin(self) -> None:
        self._inputs, self._drawn = _Compared(self._ranks), _Compared(self._ranks)
        self._batches: set[tuple[int, ...]] = set()

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        if not isinstance(record, records.Entered):
            return
        if record.wrapped and not self._is_wrapped:
            # What went through no wrapper until now was no shared training.
            self._is_wrapped = True
            self._begin()
        if record.rows and record.wrapped == self._is_wrapped:
            self._site = record.site
            self._drawn.enter(rank, tuple(record.drawn))
            if self._inputs.enter(rank, record.whole) and len(self._batches) < _FEWEST:
                self._batches.add(tuple(record.rows))

    def judge_right(self, together: Together) -> None:
        """A step on equal gradients of all ranks shows that no rank differs in targets, losses or what it draws."""
        self._steps += 1
        self._alike += together.is_alike
        for window in together.here:
            if _are_equal(window):
                says = said("data.same-micro-batches", passes=len(window.backwards))
                self._findings.leave_open(says, step=window.index, site=window.site)

    def finish(self, end: End) -> None:
        if self._ranks == 1 or not end.averages:
            return
        inputs, drawn = self._inputs, self._drawn
        are_alike = inputs.alike_share >= _MOSTLY
        shared, ranks = inputs.shared()
        if are_alike and len(self._batches) == _FEWEST and self._alike >= _MOSTLY * self._steps:
            says = said("data.same-inputs", alike=inputs.alike, forwards=inputs.seen)
            effect = said("data.same-inputs.effect", ranks=self._ranks)
            self._findings.add(Finding("watch/own-data", says, None, tuple(range(self._ranks)), self._site, effect))
        elif not are_alike and shared > _SHARED:
            says = said("data.same-epoch", share=shared)
            effect = said("data.same-epoch.effect", share=shared)
            self._findings.add(Finding("watch/own-data", says, None, ranks, self._site, effect))
        elif (share := max(shared, inputs.alike_share, drawn.shared()[0], drawn.alike_share)) > _PADDED:
            self._findings.leave_open(said("data.same-samples", share=share), site=self._site)
        else:
            self._findings.seen[Property.DATA] += inputs.seen - inputs.alike


def _are_equal(window: Window) -> bool:
    """Whether all of several backward passes give each parameter the same gradient, and some parameter one that is not
    zero."""
    passes = len(window.backwards)
    if passes < 2 or any(len(of_one) != passes for of_one in window.new.values()):
        return False
    pairs = [(one.sketch, of_one[0].sketch) for of_one in window.new.values() for one in of_one]
    # A projection may be much smaller than its gradient, and then its rounding is not small against it.
    are_near = all(abs(one - first).max() <= _NEAR * abs(first).max() for one, first in pairs)
    return are_near and any(first.any() for _, first in pairs)


_MOST = 2048
_COINCIDENCES = 5
"""Ranks that draw at random with replacement read no row twice with a probability of exp(-5), under one percent, where
so many repeats are expected."""


class Rows:
    """Fingerprints of rows, each with the epoch of its last reading.

    Keeps all of few; of many every second, fourth, ..., chosen by the fingerprint, so two ranks keep the same ones.
    again: those read in several epochs."""

    def __init__(self) -> None:
        self.again: set[int] = set()
        self._every, self._batches = 1, 0
        self._kept: dict[int, int] = {}

    def are_new(self, rows: Iterable[int]) -> bool:
        """Whether no row was read before, as far as is known."""
        chosen = self._chosen(rows)
        return len({*chosen}) == len(chosen) and self._kept.keys().isdisjoint(chosen)

    def add(self, rows: Iterable[int], epoch: int = 0) -> None:
        chosen = self._chosen(rows)
        self.again |= {row for row in chosen if self._kept.get(row, epoch) != epoch}
        self._kept.update(dict.fromkeys(chosen, epoch))
        self._batches += 1
        while len(self._kept) > _MOST:
            self._every *= 2
            self._kept = {row: self._kept[row] for row in self._chosen(self._kept)}
            self.again &= self._kept.keys()

    def common(self, other: Rows) -> set[int]:
        """The rows that both have read, of those that both keep."""
        return self._kept.keys() & other._kept.keys()

    def shared(self, other: Rows) -> float:
        """The share of common rows, of the rank that has read fewer.

        It is 0 if each batch may be drawn from all rows, with replacement: ranks then have rows in common by chance.
        The ranks' overlap tells how many rows there are (Lincoln and Petersen's estimate). Among so few, a rank that
        draws with replacement would have read some row twice by now."""
        common = len(self.common(other))
        if not common:
            return 0.0
        every = max(self._every, other._every)
        own, theirs = (sum(row % every == 0 for row in one._kept) for one in (self, other))
        rows = own * theirs / common
        # Pairs of rows from different batches, which could be the same row.
        pairs = min(own**2 * (1 - 1 / self._batches), theirs**2 * (1 - 1 / other._batches)) / 2
        return common / min(own, theirs) if pairs >= _COINCIDENCES * rows else 0.0

    def _chosen(self, rows: Iterable[int]) -> list[int]:
        return [row for row in rows if row % self._every == 0]
