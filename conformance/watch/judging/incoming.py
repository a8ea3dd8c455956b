"""Normalizes the records of all ranks: one number for each parameter and optimizer, and clip calls of hooks after the
gradients that they clip.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from conformance.watch import records
from conformance.watch.judging.windows import Key

_V = TypeVar("_V")

_OF_OTHERS = {"beside", "drawn", "evaluated", "rows", "samplers", "samples", "shape"}
"""Lists of integers that are not numbers of parameters."""


OF_PARAMETERS = {
    kind: tuple(one.name for one in fields(kind) if one.type == "list[int]" and one.name not in _OF_OTHERS)
    for kind in records.Record.__subclasses__()
}
"""The fields of each kind of records that are numbers of parameters."""


class _Common:
    """Numbers that all ranks share for equal things."""

    def __init__(self) -> None:
        self._of: dict[Hashable, int] = {}
        self._taken: set[int] = set()

    def number(self, thing: Hashable, own: int) -> int:
        """The common number. own: the rank's number, which is kept if it is free."""
        if thing not in self._of:
            self._of[thing] = own if own not in self._taken else max(self._taken) + 1
            self._taken.add(self._of[thing])
        return self._of[thing]


@dataclass
class _Rank:
    """The numbering of one rank. parameters, optimizers: common numbers that differ from the rank's, by the rank's.
    waiting: parameters since the last other record. shapes: of all parameters. keys: the number of equal optimizers.
    last: the last optimizer that was made with new parameters. count: the number of parameters since."""

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
        key = Key(*kind, self.keys[kind])
        self.keys[kind] += 1
        # One inside another optimizer, as in ZeRO, may differ between the ranks.
        if self.waiting:
            self.last, self.count = key, 0
        return key

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
    """Replaces the numbers of parameters and optimizers in the records of processes that train together."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = defaultdict(_Rank)
        self._parameters, self._optimizers = _Common(), _Common()

    def translated(self, rank: int, record: records.Record) -> Sequence[records.Record]:
        """The record with common numbers. A parameter waits for the next record, which may be its optimizer."""
        of = self._ranks[rank]
        if isinstance(record, records.Parameter):
            of.waiting.append(record)
            return ()
        if isinstance(record, records.Optimizer):
            common = self._optimizers.number(of.make(record), record.optimizer)
            if common != record.optimizer:
                of.optimizers[record.optimizer] = common
        waiting, of.waiting = of.waiting, []
        found = [self._see(of, parameter) for parameter in waiting]
        return (*found, of.renumbered(record) if of.parameters or of.optimizers else record)

    def _see(self, of: _Rank, parameter: records.Parameter) -> records.Parameter:
        """Identifies a parameter by the last optimizer when it was seen first, its place after that, and its shape."""
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
    """Reorders the records of one rank: clip calls of hooks come after the gradients that they clip.

    The gradients of a backward pass may be recorded when it ends, after its hooks ran. A clip call belongs to such a
    pass if the gradients of its parameters come next, before any other call.
    """

    def __init__(self) -> None:
        self._held: list[records.Record] = []

    def feed(self, record: records.Record) -> Sequence[records.Record]:
        if isinstance(record, _HELD) and (self._held or isinstance(record, _CLIPS)):
            self._held.append(record)
            return ()
        return (*self.flush(), record) if self._held else (record,)

    def flush(self) -> list[records.Record]:
        """The delayed records."""
        coming, late, others = set[int](), list[records.Record](), list[records.Record]()
        for record in reversed(self._held):
            if isinstance(record, records.Local):
                coming |= {*record.parameters}
            is_late = isinstance(record, _CLIPS) and not coming.isdisjoint(record.parameters)
            (late if is_late else others).append(record)
        self._held = []
        return [*reversed(others), *reversed(late)]
