"""Does each epoch have an order of its own, and does somebody read each part of it?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TypeAlias

from conformance.watch import records
from conformance.watch.judging.findings import Finding, Findings

_MOSTLY = 0.3
"""Of the backward passes: a sampler that comes more rarely is that of an evaluation."""

_TWICE = 2
"""So often an epoch may come by itself: one that is taken up again, or goes through the data only to look at it."""

_UNREAD = (
    "a sampler deals its data out to {} replicas, of which no more than {} read: the rest is read by nobody, unless "
)
_UNREAD += "they change places"

_MOST = 64
"""Orders of a rank, as a script may have other data for each epoch, and samplers of one share."""

_Key: TypeAlias = tuple[str, int]
"""What has an order: a sampler, and known data, of which each sampler counts once, as one that is made anew goes on."""


@dataclass
class _Order:
    """first: the first batch of the last epoch, which began so often with it. again: the last time that one began again
    and again; unproved: where it is not known that the samples are the same; twice: what to say of one that did so
    once. is_told: epochs have several numbers. trained: before how many backward passes a batch of it came. sampler:
    the last one; are_beside: batches of an earlier one come after its first, too."""

    first: records.First | None = None
    times: int = 1
    again: Finding | None = None
    unproved: str | None = None
    twice: str | None = None
    is_told: bool = False
    trained: int = 0
    sampler: int = -1
    are_beside: bool = False


@dataclass
class _Rank:
    """keys: by the number of each sampler that shuffles, of its own order and that of its data. passes: how many
    backward passes there were. shares: by how many replicas there are, the samplers that deal a share out."""

    keys: dict[int, tuple[_Key, ...]] = field(default_factory=dict)
    orders: dict[_Key, _Order] = field(default_factory=dict)
    passes: int = 0
    shares: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


class Epochs:
    """Of the processes that train together."""

    def __init__(self, ranks: int, findings: Findings) -> None:
        self._ranks, self._findings = ranks, findings
        self._of: dict[int, _Rank] = defaultdict(_Rank)

    def feed(self, rank: int, record: records.Record) -> None:
        of = self._of[rank]
        match record:
            case records.Optimizer():
                # Another training, as in a search: it may go through the same epochs.
                for order in of.orders.values():
                    order.first = None
            case records.Backward():
                of.passes += 1
                known = [(sampler, key) for sampler in record.samplers for key in of.keys.get(sampler, ())]
                for key in {key for _, key in known}:
                    of.orders[key].trained += 1
                for sampler, key in known:
                    of.orders[key].are_beside |= sampler != of.orders[key].sampler
            case records.Epoch():
                self._know(of, record)
            case records.First():
                # One batch of all has no order.
                for key in () if record.is_all else of.keys.get(record.sampler, ()):
                    order = of.orders[key]
                    if key[0] == "sampler" or order.sampler != record.sampler:
                        self._begin(order, rank, record)
                    order.sampler = record.sampler

    def _know(self, of: _Rank, epoch: records.Epoch) -> None:
        if len(of.shares[epoch.replicas]) < _MOST:
            of.shares[epoch.replicas].add(epoch.sampler)
        of.keys.pop(epoch.sampler, None)
        if not epoch.shuffles:
            return
        keys: tuple[_Key, ...] = (("sampler", epoch.sampler),)
        if epoch.data is not None:
            keys += (("data", epoch.data),)
        # The latest is the last.
        of.keys[epoch.sampler] = keys
        for key in keys:
            of.orders[key] = of.orders.pop(key, _Order())
        while len(of.orders) > _MOST:
            oldest = next(iter(of.orders))
            del of.orders[oldest]
            of.keys = {sampler: keys for sampler, keys in of.keys.items() if oldest not in keys}

    def _begin(self, order: _Order, rank: int, first: records.First) -> None:
        before, order.first = order.first, first
        if before is not None and before.epoch != first.epoch:
            # Who sets an epoch, if not each time, may go through each several times on purpose.
            order.is_told = True
        if before is None or before.epoch != first.epoch or not _are_same(before, first):
            order.times = 1
            return
        order.times += 1
        says = f"the sampler began epoch {first.epoch} {order.times} times, each with the same batch"
        if order.times == _TWICE:
            order.twice = says
        elif first.labelled or before.rows == first.rows != []:
            effect = f"{order.times} epochs begin with the same {len(first.drawn or first.rows)} samples"
            order.again = Finding("watch/new-order", says, None, (rank,), first.site, effect)
        else:
            order.unproved = (
                f"the sampler began epoch {first.epoch} again and again, each at the same places of its data"
            )

    def finish(self, *, averages: bool) -> None:
        """averages: whether the ranks are known to average gradients, so that they train one model."""
        for of in self._of.values():
            for order in of.orders.values():
                if order.is_told or order.are_beside or order.trained <= _MOSTLY * of.passes:
                    continue
                if order.again is not None:
                    self._findings.add(order.again)
                elif order.unproved is not None:
                    self._findings.undecided(order.unproved)
                elif order.twice is not None:
                    self._findings.note(
                        f"{order.twice}, as one without `set_epoch` does, or one that takes up an epoch again"
                    )
        if averages:
            self._judge_shares()

    def _judge_shares(self) -> None:
        for replicas in {replicas for of in self._of.values() for replicas in of.shares}:
            samplers = sum(len(of.shares[replicas]) for of in self._of.values())
            if replicas > max(samplers, self._ranks):
                self._findings.undecided(_UNREAD.format(replicas, samplers))


def _are_same(one: records.First, other: records.First) -> bool:
    """Whether it is the same batch, or another one that is made of the same samples."""
    return (one.rows == other.rows != []) or (one.drawn == other.drawn != [])
