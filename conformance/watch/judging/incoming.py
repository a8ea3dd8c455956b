"""Puts the records of all ranks into common terms: one number for each parameter and optimizer, and clip calls of hooks
after the gradients that they were given.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from conformance.watch import records
from conformance.watch.judging.windows import Key

_V = TypeVar("_V")

_OF_OTHERS = {"beside", "drawn", "evaluated", "rows", "samplers", "samples", "shape"}
"""Lists that are no numbers of parameters."""


OF_PARAMETERS = {
    kind: tuple(one.name for one in fields(kind) if one.type == "list[int]" and one.name not in _OF_OTHERS)
    for kind in records.Record.__subclasses__()
}
"""The fields of each kind of records that are numbers of parameters."""


class _Common:
    """Numbers that all ranks share, by what is known of a thing on all of them."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}
        self._taken: set[int] = set()

    def number(self, thing: Hashable, own: int) -> int:
        """own: the number that a rank has given it, which it keeps if nothing else has it."""
        if thing not in self._of:
            self._of[thing] = own if own not in self._taken else max(self._taken) + 1
            self._taken.add(self._of[thing])
        return self._of[thing]


@dataclass
class _Rank:
    """parameters, optimizers: by the rank's own numbers, those that are others for all. waiting: parameters that came
    since the last other record. shapes: of all. keys: how many optimizers are alike. last: the last that was made.
    count: how many parameters came with it."""

    parameters: dict[int, int] = field(default_factory=dict)
    optimizers: dict[int, int] = field(default_factory=dict)
    waiting: list[records.Parameter] = field(default_factory=list)
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    keys: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = field(default_factory=Counter)
    last: Key | None = None
    count: int = 0

    def make(self, optimizer: records.Optimizer) -> Key:
        shapes = self.shapes | {one.parameter: tuple(one.shape) for one in self.waiting}
        kind = optimizer.type, tuple(shapes[number] for number in optimizer.parameters)
        self.last, self.count = Key(*kind, self.keys[kind]), 0
        self.keys[kind] += 1
        return self.last

    def renumbered(self, record: records.Record) -> records.Record:
        changes: dict[str, object] = {
            name: [self.parameters.get(number, number) for number in getattr(record, name)]
            for name in OF_PARAMETERS.get(type(record), ())
        }
        match record:
            case records.Named():
                changes["names"] = _by_common(record.names, self.parameters)
            case records.Backward() | records.Cleared():
                changes["versions"] = _by_common(record.versions, self.optimizers)
        optimizer = getattr(record, "optimizer", None)
        if optimizer is not None:
            changes["optimizer"] = self.optimizers.get(optimizer, optimizer)
        return replace(record, **changes) if changes else record


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
            common = self._optimizers.number(of.make(record), record.optimizer)
            if common != record.optimizer:
                of.optimizers[record.optimizer] = common
        waiting, of.waiting = of.waiting, []
        for parameter in waiting:
            yield self._see(of, parameter)
        yield of.renumbered(record) if of.parameters or of.optimizers else record

    def _see(self, of: _Rank, parameter: records.Parameter) -> records.Parameter:
        """A parameter is known by the last optimizer that was made when it was seen first, how many came with that
        before, and its shape."""
        number = parameter.parameter
        if number not in of.shapes:
            of.shapes[number] = tuple(parameter.shape)
            common = self._parameters.number((of.last, of.count, of.shapes[number]), number)
            of.count += 1
            if common != number:
                of.parameters[number] = common
        return replace(parameter, parameter=of.parameters.get(number, number))


def _by_common(of: dict[str, _V], numbers: dict[int, int]) -> dict[str, _V]:
    return {str(numbers.get(int(number), int(number))): value for number, value in of.items()}


_CLIPS = (records.Clipped, records.Limited)
_HELD = (*_CLIPS, records.Local, records.Hooks, records.Source)


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
