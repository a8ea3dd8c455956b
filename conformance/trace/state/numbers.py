"""Small numbers for objects, in order of first sight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary


class Numbers:
    """Numbers the objects of each kind from 0. Keeps none of them alive."""

    def __init__(self) -> None:
        self._of: defaultdict[str, MutableMapping[object, int]] = defaultdict(WeakIdKeyDictionary)
        self._next: defaultdict[str, int] = defaultdict(int)

    def known(self, kind: str, thing: object) -> int | None:
        """Its number, if it has one."""
        return self._of[kind].get(thing)

    def of(self, kind: str, thing: object) -> int:
        """Its number, a new one at first sight."""
        number = self.known(kind, thing)
        if number is None:
            number = self._of[kind][thing] = self._next[kind]
            self._next[kind] += 1
        return number

    def alive(self, kind: str) -> list[Any]:
        """Those of a kind that still exist, in order of their numbers."""
        return list(self._of[kind])
