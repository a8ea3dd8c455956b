"""Puts clip calls that a hook makes during a backward pass after the gradients that they were given."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.watch import records

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
