"""Joins weights and gradients that are split over the ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Moment: TypeAlias = tuple[object, ...]

#: Events with weights or gradients, and their moments, which all ranks share. Ranks that disagree may step and skip at
#: one moment.
_SHOWN = {"step": "step", "skip": "step", "clip": "clip", "forward": "forward", "start": "start", "finished": "end"}


@dataclass(frozen=True)
class _Part:
    """A rank's event at a moment. ``held``: positions of the elements that the rank holds, None if it holds all."""

    line: dict[str, Any]
    held: Collection[int] | None

    def holds(self, position: int) -> bool:
        return self.held is None or position in self.held


def joined(ranks: Sequence[Sequence[dict[str, Any]]]) -> Sequence[Sequence[dict[str, Any]]]:
    """The events of all ranks with whole weights and gradients.

    An element that a rank does not hold is taken from the first rank that holds it at the same moment, null if there is
    none. Elements that several ranks hold are not changed, to keep differences between the copies.

    Without an event ``shards`` on any rank, the events stay unchanged.
    """
    if not any(line["event"] == "shards" for lines in ranks for line in lines):
        return ranks
    parts = [dict(_parts(lines)) for lines in ranks]
    holders = defaultdict[Moment, list[_Part]](list)
    for own in parts:
        for moment, part in own.items():
            holders[moment].append(part)
    whole = [{id(own.line): _whole(own, holders[moment]) for moment, own in one.items()} for one in parts]
    return [[known.get(id(line), line) for line in lines] for lines, known in zip(ranks, whole, strict=True)]


def _parts(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[Moment, _Part]]:
    """The events with weights or gradients by moment: kind, window, micro-batch, and number among these."""
    known: Collection[int] | None = None
    often = Counter[Moment]()
    for line in lines:
        if line["event"] == "shards":
            known = None if line["held"] is None else frozenset(line["held"])
        elif line["event"] in _SHOWN:
            kind: Moment = (_SHOWN[line["event"]], line["window"], line["micro_batch"])
            often[kind] += 1
            yield (*kind, often[kind]), _Part(line, known)


def _whole(own: _Part, holders: Sequence[_Part]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in ("weights", "gradients"):
        values = own.line.get(name)
        if values is not None:
            others = [one for one in holders if len(one.line.get(name) or ()) == len(values)]
            changed[name] = [
                value
                if value is not None or own.holds(at)
                else next((one.line[name][at] for one in others if one.holds(at)), None)
                for at, value in enumerate(values)
            ]
    if own.line.get("gradients_finite") is not None:
        changed["gradients_finite"] = all(one.line.get("gradients_finite", True) for one in holders)
    return {**own.line, **changed}
