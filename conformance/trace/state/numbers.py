"""Small numbers for objects, in order of first sight."""

from __future__ import annotations

import weakref
from collections import defaultdict
from itertools import count
from typing import Any


class Numbers:
    """Numbers the objects of each kind from 0. Keeps none of them alive, and nothing of those that no longer exist."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[int, tuple[weakref.ref[object], int]]] = defaultdict(dict)
        self._next: defaultdict[str, count[int]] = defaultdict(count)

    def known(self, kind: str, thing: object) -> int | None:
        """Its number, if it has one."""
        found = self._of[kind].get(id(thing))
        return None if found is None else found[1]

    def of(self, kind: str, thing: object) -> int:
        """Its number, a new one at first sight."""
        number = self.known(kind, thing)
        if number is None:
            number = next(self._next[kind])
            numbers, key = self._of[kind], id(thing)
            # Another object may get its identity later.
            numbers[key] = weakref.ref(thing, lambda _: numbers.pop(key)), number
        return number

    def alive(self, kind: str) -> list[Any]:
        """Those of a kind that still exist, in order of their numbers."""
        things = [reference() for reference, _ in list(self._of[kind].values())]
        return [thing for thing in things if thing is not None]
