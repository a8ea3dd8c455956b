"""Which optimizers train parts of one model: those that step on the same backward pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from conformance.watch.judging.windows import Window

_MOST_WINDOWS = 64
"""Of those before, whose backward passes are compared."""


class Related:
    """Of one rank, which is like the others."""

    def __init__(self) -> None:
        self._pairs: set[frozenset[int]] = set()
        self._passes: deque[tuple[int, set[int]]] = deque(maxlen=_MOST_WINDOWS)

    def see(self, window: Window) -> None:
        passes = {*window.backwards}
        for other, theirs in self._passes:
            if passes & theirs:
                self._pairs.add(frozenset((other, window.optimizer)))
        self._passes.append((window.optimizer, passes))

    def have(self, optimizer: int, others: Iterable[int]) -> bool:
        """Whether it trains a part of a model of which one of the others trains another part."""
        return any(frozenset((optimizer, other)) in self._pairs for other in others)
