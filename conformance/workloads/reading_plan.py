"""The reading plan of each rank: the windows of a case's spec, epoch by epoch.

A spec has each order of an epoch's samples once, and the order number of each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, zip_longest
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

Spec: TypeAlias = Mapping[str, Any]
#: What a sampler does if the samples do not divide over the ranks: it repeats the first ones, or drops the last.
Sampler: TypeAlias = Literal["pad", "drop"]


class PlannedWindow(NamedTuple):
    """One accumulation window of one rank: its number in the run, the number of its epoch, and the indices of the
    samples in each of its micro-batches."""

    number: int
    epoch: int
    micro_batches: tuple[tuple[int, ...], ...]


def planned_windows(spec: Spec, rank: int) -> list[PlannedWindow]:
    """The windows in which ``rank`` has samples; epochs with the same order share theirs. A window never crosses the
    end of an epoch."""
    length: int = spec["accumulation"]
    orders = [
        [tuple(map(tuple, order[rank][start : start + length])) for start in range(0, len(order[rank]), length)]
        for order in spec["orders"]
    ]
    lengths = [max(-(-len(share) // length) for share in order) for order in spec["orders"]]
    first = [0, *accumulate(lengths[order] for order in spec["epochs"])]
    return [
        PlannedWindow(first[epoch] + number, epoch, window)
        for epoch, order in enumerate(spec["epochs"])
        for number, window in enumerate(orders[order])
    ]


def count_windows(spec: Spec) -> int:
    """The number of windows in a run; in each, at least one rank has samples."""
    return 1 + max(planned_windows(spec, rank)[-1].number for rank in range(len(spec["orders"][0])))


def rows(spec: Spec) -> list[int]:
    """For each sample the number of its row, which the recorder knows it by: samples with equal inputs share one."""
    number = dict[tuple[float, ...], int]()
    return [number.setdefault(tuple(x), len(number)) for x in spec["samples"]["x"]]


def shuffled(samples: int, batch_size: int, number: int) -> Sequence[int]:
    """The indices of ``samples`` in order ``number``, which a sampler computes from its seed and the epoch.

    Order 0 is that of the data. In other orders global batches change places, and their samples go to other
    micro-batches and ranks; but the samples of a batch stay together, so its gradient is exact in each order. A smaller
    last batch stays last.
    """
    if number == 0:
        return range(samples)
    # A string, because the numbers 1 and -1 would give the same order.
    draw = Random(f"seed {number}")
    starts = list(range(0, samples - batch_size + 1, batch_size))
    end = batch_size * len(starts)
    planned = list(starts)
    while len(starts) > 1 and starts == planned:
        draw.shuffle(starts)
    found: list[int] = []
    for start in (*starts, end):
        batch = list(range(start, min(start + batch_size, samples)))
        draw.shuffle(batch)
        found += batch
    return found


def sampled(samples: int, world_size: int, number: int, sampler: Sampler) -> list[list[int]]:
    """The indices of the samples that each rank reads in order ``number``, shuffled and dealt out one by one, as by
    torch's DistributedSampler."""
    order = list(shuffled(samples, samples, number))
    order = order[: samples - samples % world_size] if sampler == "drop" else order + order[: -samples % world_size]
    return [order[rank::world_size] for rank in range(world_size)]


def order_of(spec: Spec, rank: int, number: int) -> list[int]:
    """The indices of the samples that ``rank`` reads in an epoch with this order number."""
    if sampler := spec.get("sampler"):
        return sampled(len(spec["samples"]["y"]), spec["world_size"], number, sampler)[rank]
    batch_size = spec["world_size"] * spec["accumulation"] * spec["micro_batch_size"]
    order = shuffled(len(spec["samples"]["y"]), batch_size, number)
    return [order[place] for micro_batch in spec["orders"][0][rank] for place in micro_batch]


def turns_of(spec: Spec, number: int) -> Iterator[int]:
    """The indices of all samples in an epoch with this order number, as a stream deals them out."""
    shares = [iter(order_of(spec, rank, number)) for rank in range(spec["world_size"])]
    for turn in zip_longest(*spec["orders"][0], fillvalue=()):
        for share, micro_batch in zip(shares, turn, strict=True):
            yield from islice(share, len(micro_batch))


def stream(spec: Spec) -> Iterator[tuple[int, list[int]]]:
    """All micro-batches of all ranks in the order in which a stream deals them out, each with its rank."""
    for order in spec["epochs"]:
        for turn in zip_longest(*spec["orders"][order]):
            yield from ((rank, micro_batch) for rank, micro_batch in enumerate(turn) if micro_batch is not None)
