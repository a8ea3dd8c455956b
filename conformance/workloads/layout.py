"""Layouts: how a global batch is split over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Literal

from conformance.workloads.reading_plan import sampled, shuffled
from conformance.workloads.workload import Sample, Workload

LayoutKind = Literal["samples", "batched", "accumulated"]
#: As an accumulation: one sample at a time; the global batch is one window.
EACH_SAMPLE = 0
Shares = tuple[tuple[tuple[int, ...], ...], ...]
#: By epoch, the numbers of the samples in each micro-batch of each rank.
Orders = tuple[Shares, ...]


@dataclass(frozen=True)
class Window:
    """One accumulation window: the micro-batches between two optimizer steps.

    ``samples``: the indices of the samples of ``batch`` in the whole workload. ``shares[rank][micro_batch]``: indices
    into ``batch``. ``nominal``: the accumulation length of a full window; a short last window is shorter.
    """

    index: int
    epoch: int
    samples: tuple[int, ...]
    batch: tuple[Sample, ...] = field(hash=False)  # A thousand fractions take long to hash.
    shares: Shares
    nominal: int

    @property
    def length(self) -> int:
        """Micro-batches of each rank in this window, unless it has no samples left."""
        return len(self.shares[0])

    @property
    def world_size(self) -> int:
        return len(self.shares)

    @property
    def with_data(self) -> int:
        """The number of ranks with samples in this window; these are the first ranks."""
        return sum(map(bool, self.shares))

    @property
    def numbers(self) -> Shares:
        """Like ``shares``, with indices into the whole workload."""
        return tuple(tuple(tuple(self.samples[at] for at in one) for one in share) for share in self.shares)

    def of_full(self, size: int) -> Window | None:
        """The window with only its micro-batches of ``size`` samples; None if there are none."""
        return self.only({at for one in chain(*self.shares) if len(one) == size for at in one})

    def only(self, kept: Set[int]) -> Window | None:
        """The window with only the samples at these indices; None if there are none."""
        numbers = sorted(kept)
        place = {number: at for at, number in enumerate(numbers)}
        if not numbers:
            return None
        shares = [[tuple(place[at] for at in one if at in kept) for one in share] for share in self.shares]
        return replace(
            self,
            samples=tuple(self.samples[number] for number in numbers),
            batch=tuple(self.batch[number] for number in numbers),
            shares=tuple(tuple(filter(None, share)) for share in shares),
        )


@dataclass(frozen=True)
class Layout:
    """``world_size`` ranks, each reading ``accumulation`` micro-batches of ``micro_batch_size`` samples per step.

    Micro-batch ``t`` of rank ``r`` is chunk ``t * world_size + r`` of the global batch. Frameworks that distribute
    whole batches shard a stream this way, and any other order gives the same gradient.

    A short last batch is split evenly over the ranks. With ``in_whole_shares`` the first ranks get full shares of it,
    and the last ones none.
    """

    world_size: int
    accumulation: int
    micro_batch_size: int
    in_whole_shares: bool = False

    @classmethod
    def of(cls, workload: Workload, world_size: int = 1, accumulation: int = 1) -> Layout:
        """The layout that covers one full global batch of ``workload`` per step.

        Raises:
            ValueError: the global batch cannot be divided into ``world_size * accumulation`` equal micro-batches.
        """
        accumulation = accumulation or workload.batch_size // world_size
        size, rest = divmod(workload.batch_size, world_size * accumulation)
        if rest or not size:
            raise ValueError(
                f"workload {workload.name}: {workload.batch_size} samples do not divide into "
                f"{world_size} ranks x {accumulation} micro-batches"
            )
        return cls(world_size, accumulation, size)

    def window(self, workload: Workload, step: int, seed: int = 0) -> Window:
        """The ``step``-th window: a full one, or a shorter last one. ``seed``: of a shuffling sampler.

        Raises:
            ValueError: a short last batch cannot be divided evenly over the ranks, or into whole shares.
        """
        epoch, position = divmod(step, workload.windows_of_epoch)
        number = seed + epoch if workload.shuffle else 0
        if workload.sampler is not None:
            size, share = self.micro_batch_size, self.accumulation * self.micro_batch_size
            dealt = sampled(workload.samples, self.world_size, number, workload.sampler)
            parts = [micro_batches(own[position * share : (position + 1) * share], size) for own in dealt]
            return window_of(workload, step, epoch, parts, self.accumulation)
        order, first = shuffled(workload.samples, workload.batch_size, number), position * workload.batch_size
        order = order[first : first + workload.batch_size]
        batch, first = workload.batches[order[0] // workload.batch_size], min(order)
        share = self.accumulation * self.micro_batch_size
        ranks = len(batch) // share if self.in_whole_shares else self.world_size
        per_rank, rest = divmod(len(batch), ranks) if ranks else (0, 1)
        if rest or (self.in_whole_shares and per_rank != share):
            into = f"into whole shares of {share}" if self.in_whole_shares else f"over {self.world_size} ranks"
            raise ValueError(f"workload {workload.name}: {len(batch)} samples do not divide {into}")
        shares = _dealt(per_rank, ranks, self.micro_batch_size) + ((),) * (self.world_size - ranks)
        if number:
            shares = tuple(tuple(tuple(order[at] - first for at in one) for one in share) for share in shares)
        samples = tuple(range(first, first + len(batch)))
        return Window(step, epoch, samples, batch, shares, self.accumulation)

    def filled_up(self, workload: Workload, window: Window, repeated: Sequence[int]) -> Window:
        """A window extended by samples, given by index, and split evenly over the ranks."""
        samples = (*window.samples, *repeated)
        return replace(
            window,
            samples=samples,
            batch=tuple(workload.data[number] for number in samples),
            shares=_dealt(len(samples) // self.world_size, self.world_size, self.micro_batch_size),
        )

    def windows(self, workload: Workload) -> tuple[Window, ...]:
        """All windows of a run."""
        return tuple(self.window(workload, step) for step in range(workload.steps))


def windows_of(workload: Workload, orders: Orders, accumulation: int) -> tuple[Window, ...]:
    """The windows of ranks that read the samples of ``workload`` in these orders."""
    found, count = list[Window](), 0
    for epoch, order in enumerate(orders):
        for start in range(0, max(map(len, order)), accumulation):
            parts = [share[start : start + accumulation] for share in order]
            # Orders may cross the ends of epochs.
            of_epoch = max(epoch, count // workload.samples)
            found.append(window_of(workload, len(found), of_epoch, parts, accumulation))
            count += len(found[-1].samples)
    return tuple(found)


def micro_batches(numbers: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """Chunks of ``size`` numbers; the last one may be smaller."""
    return tuple(tuple(numbers[start : start + size]) for start in range(0, len(numbers), size))


def window_of(
    workload: Workload, index: int, epoch: int, parts: Sequence[Sequence[Sequence[int]]], accumulation: int
) -> Window:
    """The window in which each rank reads its part: the numbers of the samples in each micro-batch."""
    numbers = tuple(chain.from_iterable(chain(*parts)))
    place = iter(range(len(numbers)))
    return Window(
        index=index,
        epoch=epoch,
        samples=numbers,
        batch=tuple(workload.data[number] for number in numbers),
        shares=tuple(tuple(tuple(next(place) for _ in one) for one in part) for part in parts),
        nominal=accumulation,
    )


@lru_cache(maxsize=64)
def _dealt(per_rank: int, world_size: int, micro_batch_size: int) -> Shares:
    """``per_rank`` samples for each rank, in micro-batches of ``micro_batch_size``; the last one may be smaller."""
    deal: list[list[tuple[int, ...]]] = [[] for _ in range(world_size)]
    position = 0
    for done in range(0, per_rank, micro_batch_size):
        chunk = min(micro_batch_size, per_rank - done)
        for share in deal:
            share.append(tuple(range(position, position + chunk)))
            position += chunk
    return tuple(tuple(share) for share in deal)
