"""Detects ranks, and micro-batches of a step, that use the same samples."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from conformance.watch import records
from conformance.watch.judging.chapter import Chapter, End
from conformance.watch.judging.equations import Together
from conformance.watch.judging.findings import Finding, Findings, said
from conformance.watch.judging.properties import Property
from conformance.watch.judging.stream import Stream
from conformance.watch.judging.windows import Contribution, Window

_FEWEST = 3
"""Least number of different batches. A first try may feed all ranks the same one or two batches."""

_MOSTLY = 0.9
"""Share of equal batches. A few may differ, such as the last of an epoch."""

_SHARED = 0.4
"""Share of common rows. Ranks that each go through all data soon share all of it; parts drawn with different seeds, as
by `random_split`, share less."""

_PADDED = 0.1
"""Share of common rows by padding: a `DistributedSampler` repeats a few samples to give all ranks the same number."""

_MOST_BEHIND = 1000
_NEAR = 1e-5
"""Relative: rounding of the same gradient, computed twice."""
_MANY_ELEMENTS = 64
"""Gradients with fewer elements may be equal by chance."""


class _Compared:
    """The batches of all ranks, compared in the order in which each rank reads them.

    seen, alike: batches known on all ranks, and those that were equal. fed: batches that other ranks have not read yet.
    rows: those of each rank until one repeats, without batches that all ranks read at once: these may belong to a
    learning-rate finder."""

    def __init__(self, ranks: int) -> None:
        self.seen = self.alike = 0
        self._fed: list[deque[Sequence[int]]] = [deque(maxlen=_MOST_BEHIND) for _ in range(ranks)]
        self._rows = [Rows() for _ in range(ranks)]

    def enter(self, rank: int, rows: Sequence[int]) -> bool:
        """Takes a batch. rows: () if unknown. Returns whether all ranks read the same batch."""
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
        """The largest share of common rows of two ranks, and these ranks."""
        if self._are_dealt():
            return 0.0, ()
        pairs = combinations(range(len(self._rows)), 2)
        return max(((self._rows[one].shared(self._rows[other]), (one, other)) for one, other in pairs), default=(0, ()))

    def _are_dealt(self) -> bool:
        """Whether ranks shared no row until they had read all rows together, as from one stream of several epochs."""
        every, batches = max(one.every for one in self._rows), defaultdict[int, list[int]](list)
        for one in self._rows:
            for row, batch in one.batch_of(every).items():
                batches[row].append(batch)
        first = min((sorted(of)[1] for of in batches.values() if len(of) > 1), default=0)
        return sum(min(of) > first for of in batches.values()) <= _PADDED * len(batches)


class Samples(Chapter):
    """Compares the samples of ranks that train together.

    inputs: model inputs. drawn: samples before augmentation. dealing: samplers that deal to all ranks, each with its
    rank. are_dealt: these made all batches. batches: a few that all ranks read. steps, alike: steps that average
    gradients, and those where all ranks' gradients are equal."""

    fed = (records.Epoch, records.Entered)

    def __init__(self, ranks: int, findings: Findings) -> None:
        super().__init__(findings)
        self._ranks = ranks
        self._is_wrapped = False
        self._site: records.Site = None
        self._steps = self._alike = 0
        self._dealing: set[tuple[int, int | None]] = set()
        self._begin()

    def _begin(self) -> None:
        self._inputs, self._drawn = _Compared(self._ranks), _Compared(self._ranks)
        self._batches: set[tuple[int, ...]] = set()
        self._are_dealt = True

    def feed(self, rank: int, record: records.Record, stream: Stream) -> None:
        if isinstance(record, records.Epoch) and record.replicas == self._ranks:
            self._dealing.add((rank, record.sampler))
        if not isinstance(record, records.Entered):
            return
        if record.wrapped and not self._is_wrapped:
            # Inputs before the first wrapped model did not belong to shared training.
            self._is_wrapped = True
            self._begin()
        if record.rows and record.wrapped == self._is_wrapped:
            self._site = record.site
            self._are_dealt &= (rank, record.sampler) in self._dealing
            self._drawn.enter(rank, tuple(record.drawn))
            if self._inputs.enter(rank, record.whole) and len(self._batches) < _FEWEST:
                self._batches.add(tuple(record.rows))

    def judge_right(self, together: Together) -> None:
        # Equal gradients show that the ranks do not differ in targets, losses or random numbers either.
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
        dealt, others = drawn.shared()
        # Other samples may have the same content; a sampler never deals the same sample twice.
        is_twice = self._are_dealt and dealt > _PADDED
        if is_twice:
            shared, ranks = dealt, others
        if are_alike and len(self._batches) == _FEWEST and self._alike >= _MOSTLY * self._steps:
            says = said("data.same-inputs", alike=inputs.alike, forwards=inputs.seen)
            effect = said("data.same-inputs.effect", ranks=self._ranks)
            self._findings.add(Finding("watch/own-data", says, None, tuple(range(self._ranks)), self._site, effect))
        elif not are_alike and (is_twice or shared > _SHARED):
            says, effect = said("data.same-epoch", share=shared), said("data.same-epoch.effect", share=shared)
            self._findings.add(Finding("watch/own-data", says, None, ranks, self._site, effect))
        elif (share := max(shared, inputs.alike_share, dealt, drawn.alike_share)) > _PADDED:
            self._findings.leave_open(said("data.same-samples", share=share), site=self._site)
        else:
            self._findings.seen[Property.DATA] += inputs.seen - inputs.alike


def _repeating(window: Window) -> int:
    """The number of backward passes with the same nonzero gradients as the pass before or after. Small gradients, which
    may be equal by chance, count only if all passes of the window repeat."""
    order, repeating = sorted(window.backwards), set[int]()
    for one, other in pairwise(order):
        firsts = []
        for passes in window.new.values():
            first, second = _of(passes, one), _of(passes, other)
            if not _are_near(first, second):
                break
            firsts.append(first)
        else:
            repeating |= {one, other} if any(first is not None and any(first) for first in firsts) else set()
    is_large = sum(window.sizes.get(number, 1) for number in window.new) >= _MANY_ELEMENTS
    return len(repeating) if is_large or len(repeating) == len(order) else 0


def _of(passes: Sequence[Contribution], backward: int) -> list[float] | None:
    """The sketch of a parameter's gradient by this backward pass."""
    return next((one.sketch.ravel().tolist() for one in reversed(passes) if one.backward == backward), None)


def _are_near(one: list[float] | None, other: list[float] | None) -> bool:
    """Whether two sketches are equal up to rounding, relative to the norm: projections may be much smaller."""
    if one is None or other is None:
        return one is other
    limit = _NEAR * max(map(abs, one))
    return all(abs(a - b) <= limit for a, b in zip(one, other, strict=False))


_MOST = 2048
_COINCIDENCES = 5
"""Expected repeats. If ranks drew with replacement, reading no row twice would have probability exp(-5), under 1%."""


class Rows:
    """Fingerprints of rows, each with the epoch of its last reading.

    Keeps all if there are few; else every second, fourth, ..., chosen by fingerprint, so two ranks keep the same rows.
    again: rows read in several epochs."""

    def __init__(self) -> None:
        self.again: set[int] = set()
        self.every, self._batches = 1, 0
        self._kept: dict[int, int] = {}
        self._is_over = False

    def add(self, rows: Iterable[int], epoch: int = 0) -> None:
        chosen = [row for row in rows if row % self.every == 0]
        self.again |= {row for row in chosen if self._kept.get(row, epoch) != epoch}
        self._kept.update(dict.fromkeys(chosen, epoch))
        self._batches += 1
        while len(self._kept) > _MOST:
            self.every *= 2
            self._kept = {row: of for row, of in self._kept.items() if row % self.every == 0}
            self.again &= self._kept.keys()

    def add_new(self, rows: Sequence[int]) -> None:
        """Adds rows until one repeats. Each has the number of its batch, not of an epoch."""
        self._is_over |= len({*rows}) < len(rows) or not self._kept.keys().isdisjoint(rows)
        if not self._is_over:
            self.add(rows, self._batches)

    def batch_of(self, every: int) -> dict[int, int]:
        """The number of the batch of each row, of every n-th row."""
        return {row: batch for row, batch in self._kept.items() if row % every == 0}

    def common(self, other: Rows) -> set[int]:
        """The rows that both keep."""
        return self._kept.keys() & other._kept.keys()

    def shared(self, other: Rows) -> float:
        """The share of common rows, relative to the rank that read fewer.

        0 if batches may be drawn from all rows with replacement, because ranks then share rows by chance. The overlap
        estimates the number of all rows (Lincoln and Petersen); with so few, drawing with replacement would have
        repeated a row by now."""
        common = len(self.common(other))
        if not common:
            return 0.0
        every = max(self.every, other.every)
        own, theirs = (sum(row % every == 0 for row in one._kept) for one in (self, other))
        # Pairs of rows from different batches, which could have been equal.
        pairs = min(own**2 * (1 - 1 / self._batches), theirs**2 * (1 - 1 / other._batches)) / 2
        return common / min(own, theirs) if pairs * common >= _COINCIDENCES * own * theirs else 0.0
