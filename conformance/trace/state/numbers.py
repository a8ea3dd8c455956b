"""Small numbers for objects, in order of first sight."""

from __future__ import annotations

import weakref


class Numbers:
    """Numbers the objects of each kind from 0. Keeps none of them alive."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, tuple[weakref.ref[object], int]]] = {}
        self._next: dict[str, int] = {}

    def known(self, kind: str, thing: object) -> int | None:
        """Its number, if it has one. An id may be that of an object that is gone."""
        found = self._of.get(kind, {}).get(id(thing))
        return found[1] if found is not None and found[0]() is thing else None

    def of(self, kind: str, thing: object) -> int:
        """Its number, a new one at first sight."""
        number = self.known(kind, thing)
        if number is None:
            number = self._next.get(kind, 0)
            self._next[kind] = number + 1
            self._of.setdefault(kind, {})[id(thing)] = weakref.ref(thing), number
        return number

    def alive(self, kind: str) -> list[object]:
        """Those of a kind that still exist, in order of their numbers."""
        things = [reference() for reference, _ in self._of.get(kind, {}).values()]
        return [thing for thing in things if thing is not None]
