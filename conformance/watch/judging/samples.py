"""Whether ranks, and the micro-batches of a step, see other samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from conformance.watch import records
from conformance.watch.judging.case import Together
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Sketch, Window

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
_MANY_ELEMENTS = 64
"""A gradient of fewer numbers may be another one's by chance."""


class _Compared:
    """Batches of several ranks, compared in the order in which each rank reads them.

    seen, alike: how many were known on all ranks, and how many of these were the same. fed: batches that other ranks
    have not read yet. rows: those of each rank until one comes again. What all ranks read together is not among them:
    it may belong to a learning-rate finder."""

    def __init__(self, ranks: int) -> None:
        self.seen = self.alike = 0
        self._fed: list[deque[Sequence[int]]] = [deque(maxlen=_MOST_BEHIND) for _ in range(ranks)]
        self._rows = [Rows() for _ in range(ranks)]

    def enter(self, rank: int, rows: Sequence[int]) -> bool:
        """rows: of a batch; () if they are not known. Returns whether all ranks have read the same."""
        self._fed[rank].append(rows)
        if not all(self._fed):
            return False
        fed = [batches.popleft() for batches in self._fed]
        is_alike = all(fed) and len({*fed}) == 1
        self.seen += all(bool(read) for read in fed)
        self.alike += is_alike
        for of, read in zip(self._rows, fed, strict=True) if not is_alike else ():
            of.add_new(read)
        return is_alike

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
            if (passes := _repeating(window)) > 1:
                says = said("data.same-micro-batches", passes=passes, all=len(window.backwards))
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
            says, effect = said("data.same-epoch", share=shared), said("data.same-epoch.effect", share=shared)
            self._findings.add(Finding("watch/own-data", says, None, ranks, self._site, effect))
        elif (share := max(shared, inputs.alike_share, drawn.shared()[0], drawn.alike_share)) > _PADDED:
            self._findings.leave_open(said("data.same-samples", share=share), site=self._site)
        else:
            self._findings.seen[Property.DATA] += inputs.seen - inputs.alike


def _repeating(window: Window) -> int:
    """How many backward passes give each parameter the gradient of the pass before or after, where some are not zero:
    all of the window, or of gradients that are too large to be equal by chance."""
    of = {number: {one.backward: one.sketch for one in passes} for number, passes in window.new.items()}
    order, repeating = sorted(window.backwards), set[int]()
    for one, other in pairwise(order):
        pairs = [(by_pass.get(one), by_pass.get(other)) for by_pass in of.values()]
        if all(map(_are_near, pairs)) and any(first is not None and first.any() for first, _ in pairs):
            repeating |= {one, other}
    is_large = sum(window.sizes.get(number, 1) for number in of) >= _MANY_ELEMENTS
    return len(repeating) if is_large or len(repeating) == len(order) else 0


def _are_near(pair: tuple[Sketch | None, Sketch | None]) -> bool:
    """A projection may be much smaller than its gradient, and then its rounding is not small against it."""
    one, other = pair
    return one is other if one is None or other is None else abs(one - other).max() <= _NEAR * abs(one).max()


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
        self._is_over = False

    def add(self, rows: Iterable[int], epoch: int = 0) -> None:
        chosen = [row for row in rows if row % self._every == 0]
        self.again |= {row for row in chosen if self._kept.get(row, epoch) != epoch}
        self._kept.update(dict.fromkeys(chosen, epoch))
        self._batches += 1
        while len(self._kept) > _MOST:
            self._every *= 2
            self._kept = {row: of for row, of in self._kept.items() if row % self._every == 0}
            self.again &= self._kept.keys()

    def add_new(self, rows: Sequence[int]) -> None:
        """Until one comes again."""
        self._is_over |= len({*rows}) < len(rows) or not self._kept.keys().isdisjoint(rows)
        if not self._is_over:
            self.add(rows)

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
        # Pairs of rows from different batches, which could be the same row.
        pairs = min(own**2 * (1 - 1 / self._batches), theirs**2 * (1 - 1 / other._batches)) / 2
        return common / min(own, theirs) if pairs * common >= _COINCIDENCES * own * theirs else 0.0
