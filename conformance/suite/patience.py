"""When to stop waiting for a trainer that hangs in one case after another."""

from __future__ import annotations

from typing import TypeAlias

#: So many cases in a row that hang in the same place are enough to know it.
ENOUGH = 3

Kind: TypeAlias = tuple[str, str]
"""A trainer's target and a backend."""
Place: TypeAlias = frozenset[str | None]
"""The lines in which ranks hang."""


class Patience:
    """What this process has seen of each trainer and backend. A case that ends, or hangs elsewhere, starts anew."""

    def __init__(self) -> None:
        self._hung: dict[Kind, tuple[Place, int]] = {}

    def note(self, kind: Kind, place: Place | None) -> None:
        """A case has ended; ``place``: where it hung, if it did."""
        if place is None:
            self._hung.pop(kind, None)
            return
        before, count = self._hung.get(kind, (place, 0))
        self._hung[kind] = place, count + 1 if before == place else 1

    def lost_with(self, kind: Kind) -> str | None:
        """Why no further case is run; None if one is."""
        place, count = self._hung.get(kind, (frozenset(), 0))
        if count < ENOUGH:
            return None
        lines = sorted(line for line in place if line is not None)
        where = f" at {' and '.join(lines)}" if lines else ""
        return f"{count} cases of {kind[0]} on {kind[1]} in a row hung in the same place{where}"
