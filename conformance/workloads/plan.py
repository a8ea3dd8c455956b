"""What each rank is asked to read: the windows of a case's spec, epoch by epoch.

A spec holds each order in which an epoch's samples are dealt out once, and the order that each epoch has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
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


def stream(spec: Spec) -> Iterator[tuple[int, list[int]]]:
    """All micro-batches of all ranks in the order in which a stream of samples deals them out, each with its rank."""
    for order in spec["epochs"]:
        for turn in zip_longest(*spec["orders"][order]):
            yield from ((rank, micro_batch) for rank, micro_batch in enumerate(turn) if micro_batch is not None)
