"""Which optimizers train parts of one model: those that step on the same backward pass; and which parts of a model each
rank has for itself, as the stages of a pipeline are: those whose losses come from other lines on each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from conformance.watch.judging.windows import Window

_MOST_WINDOWS = 64
"""Of those before, whose backward passes are compared."""


class Related:
    """Of the processes that train together."""

    def __init__(self) -> None:
        self._alike: set[int] = set()
        self._pairs: set[frozenset[int]] = set()
        self._passes: deque[tuple[int, set[int]]] = deque(maxlen=_MOST_WINDOWS)

    def see(self, here: Sequence[Window]) -> None:
        """A step of all ranks."""
        window = here[0]
        if not are_stages(here):
            self._alike.add(window.optimizer)
        passes = {*window.backwards}
        for other, theirs in self._passes:
            if passes & theirs:
                self._pairs.add(frozenset((other, window.optimizer)))
        self._passes.append((window.optimizer, passes))

    def are_stages(self, optimizer: int) -> bool:
        """Whether the ranks never went backward from the same line before a step of this optimizer."""
        return optimizer not in self._alike

    def have(self, optimizer: int, others: Iterable[int]) -> bool:
        """Whether it trains a part of a model of which one of the others trains another part."""
        return any(frozenset((optimizer, other)) in self._pairs for other in others)


def are_stages(here: Sequence[Window]) -> bool:
    """Whether the losses of all ranks come from different lines."""
    calls = [{one.calls for one in each.backwards.values()} for each in here]
    return len(here) > 1 and all(calls) and not set.intersection(*calls)
