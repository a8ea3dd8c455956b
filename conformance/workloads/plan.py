"""What each rank is asked to read: the windows of a case's spec, epoch by epoch.

A spec holds each order in which an epoch's samples are dealt out once, and the order that each epoch has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple, TypeAlias

Spec: TypeAlias = Mapping[str, Any]


class PlannedWindow(NamedTuple):
    """One accumulation window of one rank: the numbers of the samples in each of its micro-batches."""

    epoch: int
    micro_batches: tuple[tuple[int, ...], ...]


def planned_windows(spec: Spec, rank: int) -> list[PlannedWindow]:
    """All windows of ``rank``; epochs with the same order share theirs. A window never crosses the end of an epoch."""
    length: int = spec["accumulation"]
    orders = [
        [tuple(map(tuple, order[rank][start : start + length])) for start in range(0, len(order[rank]), length)]
        for order in spec["orders"]
    ]
    return [PlannedWindow(epoch, window) for epoch, order in enumerate(spec["epochs"]) for window in orders[order]]


def rows(spec: Spec) -> list[int]:
    """For each sample the number of its row, by which the recorder knows it: samples with equal inputs are one row."""
    number = dict[tuple[float, ...], int]()
    return [number.setdefault(tuple(x), len(number)) for x in spec["samples"]["x"]]


def shuffled(samples: int, batch_size: int, number: int) -> Sequence[int]:
    """The numbers of ``samples`` in order ``number``, which a sampler makes of its seed and the epoch.

    Order 0 is that of the data. In all others global batches come at other places, and their samples go to other
    micro-batches and ranks; but those of a batch stay together, so that its gradient is exact in each order. A last
    batch that is smaller stays the last.
    """
    if number == 0:
        return range(samples)
    # A text, as of the numbers 1 and -1 it would make the same.
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


def order_of(spec: Spec, rank: int, number: int) -> list[int]:
    """The numbers of the samples that ``rank`` reads in an epoch whose order has this number."""
    batch_size = spec["world_size"] * spec["accumulation"] * spec["micro_batch_size"]
    order = shuffled(len(spec["samples"]["y"]), batch_size, number)
    return [order[place] for micro_batch in spec["orders"][0][rank] for place in micro_batch]


def stream(spec: Spec) -> Iterator[tuple[int, list[int]]]:
    """All micro-batches of all ranks in the order in which a stream of samples deals them out, each with its rank."""
    for order in spec["epochs"]:
        for turn in zip_longest(*spec["orders"][order]):
            yield from ((rank, micro_batch) for rank, micro_batch in enumerate(turn) if micro_batch is not None)
