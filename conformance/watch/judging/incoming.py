"""Puts the records of all ranks into common terms: one number for each parameter and optimizer, and clip calls of hooks
after the gradients that they were given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from conformance.watch import records
from conformance.watch.judging.windows import Key

OF_PARAMETERS: dict[type[records.Record], tuple[str, ...]] = {
    records.Optimizer: ("parameters",),
    records.Hooks: ("parameters",),
    records.Local: ("parameters", "fresh", "sparse"),
    records.Entries: ("parameters",),
    records.Left: ("parameters", "held", "changed"),
    records.Stale: ("parameters",),
    records.Captured: ("parameters",),
    records.Cleared: ("parameters",),
    records.Clipped: ("parameters",),
    records.Limited: ("parameters",),
    records.Stepped: ("parameters", "frozen", "used", "weights", "unreduced"),
    records.Weighed: ("parameters",),
    records.Wrapped: ("own", "inside"),
    records.Exchanged: ("parameters",),
}
"""The fields of records that are numbers of parameters."""

_Place: TypeAlias = tuple[Key | None, int, tuple[int, ...]]
"""The last optimizer that was made when a parameter was seen first, how many came with it before, and the shape."""


class _Common:
    """Numbers that all ranks share, by what is known of a thing on all of them."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}
        self._taken: set[int] = set()

    def number(self, thing: Hashable, own: int) -> int:
        """own: the number that a rank has given it, which it keeps if nothing else has it."""
        known = self._of.get(thing)
        if known is None:
            known = own if own not in self._taken else max(self._taken) + 1
            self._of[thing] = known
            self._taken.add(known)
        return known


@dataclass
class _Rank:
    """parameters, optimizers: by the rank's own numbers, those that are others for all. waiting: parameters that came
    since the last other record. last: the last optimizer that was made. count: how many parameters came with it."""

    parameters: dict[int, int] = field(default_factory=dict)
    optimizers: dict[int, int] = field(default_factory=dict)
    waiting: list[records.Parameter] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    keys: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=Counter)
    last: Key | None = None
    count: int = 0


class Numbering:
    """Of the processes that train together."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = defaultdict(_Rank)
        self._parameters, self._optimizers = _Common(), _Common()

    def translated(self, rank: int, record: records.Record) -> Iterator[records.Record]:
        """The record with the common numbers. A parameter waits for the record that follows, which may be that of the
        optimizer that it came with."""
        of = self._ranks[rank]
        if isinstance(record, records.Parameter):
            of.waiting.append(record)
            return
        if isinstance(record, records.Optimizer):
            self._make(of, record)
        if of.waiting:
            waiting, of.waiting = of.waiting, []
            for parameter in waiting:
                yield self._see(of, parameter)
        yield _renumbered(record, of) if of.parameters or of.optimizers else record

    def _make(self, of: _Rank, optimizer: records.Optimizer) -> None:
        shapes = of.shapes | {one.parameter: tuple(one.shape) for one in of.waiting}
        kind = optimizer.type, tuple(shapes[number] for number in optimizer.parameters)
        of.last, of.count = Key(*kind, of.keys[kind]), 0
        of.keys[kind] += 1
        common = self._optimizers.number(of.last, optimizer.optimizer)
        if common != optimizer.optimizer:
            of.optimizers[optimizer.optimizer] = common

    def _see(self, of: _Rank, parameter: records.Parameter) -> records.Parameter:
        number = parameter.parameter
        if number not in of.shapes:
            of.shapes[number] = tuple(parameter.shape)
            place: _Place = of.last, of.count, of.shapes[number]
            of.count += 1
            common = self._parameters.number(place, number)
            if common != number:
                of.parameters[number] = common
        return replace(parameter, parameter=of.parameters.get(number, number))


def _renumbered(record: records.Record, of: _Rank) -> records.Record:
    changes: dict[str, object] = {
        name: [of.parameters.get(number, number) for number in getattr(record, name)]
        for name in OF_PARAMETERS.get(type(record), ())
    }
    if isinstance(record, records.Named):
        changes["names"] = {
            str(of.parameters.get(int(number), int(number))): name for number, name in record.names.items()
        }
    if isinstance(record, (records.Backward, records.Cleared)):
        changes["versions"] = {
            str(of.optimizers.get(int(number), int(number))): version for number, version in record.versions.items()
        }
    optimizer = getattr(record, "optimizer", None)
    if optimizer is not None:
        changes["optimizer"] = of.optimizers.get(optimizer, optimizer)
    return replace(record, **changes) if changes else record


_CLIPS = (records.Clipped, records.Limited)
_HELD = (*_CLIPS, records.Local, records.Hooks, records.Entries, records.Source)


class Hooked:
    """The records of one rank in the order of what they are about.

    The gradients of a backward pass may be recorded when it ends, after what its hooks did. A clip call belongs to such
    a pass if its parameters' gradients come next, before any other call.
    """

    def __init__(self) -> None:
        self._held: list[records.Record] = []

    def feed(self, record: records.Record) -> Iterator[records.Record]:
        if isinstance(record, _HELD) and (self._held or isinstance(record, _CLIPS)):
            self._held.append(record)
            return
        yield from self.flush()
        yield record

    def flush(self) -> list[records.Record]:
        """The records that were held back."""
        coming, late, others = set[int](), list[records.Record](), list[records.Record]()
        for record in reversed(self._held):
            if isinstance(record, records.Local):
                coming |= {*record.parameters}
            is_late = isinstance(record, _CLIPS) and not coming.isdisjoint(record.parameters)
            (late if is_late else others).append(record)
        self._held = []
        return [*reversed(others), *reversed(late)]
