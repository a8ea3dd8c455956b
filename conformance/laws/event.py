"""One event of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Site: TypeAlias = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, eq=False)
class Event:
    """What a rank did: the kinds and their fields are those of `conformance.trace.events`."""

    kind: str
    rank: int
    seq: int
    time: float
    window: int | None
    micro_batch: int | None
    where: Site | None
    called_from: Site | None
    fields: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Event:
        """The event of one line of a trace."""
        return cls(
            kind=line["event"],
            rank=line["rank"],
            seq=line["seq"],
            time=line["time"],
            window=line["window"],
            micro_batch=line["micro_batch"],
            where=_site(line.get("where")),
            called_from=_site(line.get("called_from")),
            fields=line,
        )

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str) -> Any:
        """The field, or None where this event has no such field."""
        return self.fields.get(name)

    @property
    def place(self) -> str:
        """``train.py:41``; for a line in a framework also from where the trainer called it."""
        if self.where is None:
            return "from no line of the trainer's"
        place = "{}:{}".format(*self.where)
        return place if self.called_from is None else f"{place}, called from {{}}:{{}}".format(*self.called_from)


def of_kind(events: Iterable[Event], *kinds: str) -> tuple[Event, ...]:
    """Those events that are of one of these kinds, in order."""
    return tuple(event for event in events if event.kind in kinds)


def _site(value: Any) -> Site | None:
    return None if value is None else (value[0], value[1], value[2])
