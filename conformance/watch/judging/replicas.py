"""Tells replicas from partitioned parameters, by the weights with which the ranks begin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from conformance.watch.judging.windows import Window


class Replicas:
    """Parameters of the processes that train together. Those with equal weights on all ranks at first are replicas,
    whatever the parallelism: they must stay equal. apart: all others."""

    def __init__(self) -> None:
        self.apart: set[int] = set()
        self._known: set[int] = set()

    def see(self, here: Sequence[Window]) -> None:
        """The windows of all ranks in a step: the weights are those from before it."""
        if len(here) < 2:
            return
        first, *others = here
        for number in first.weights.keys() - self._known:
            if any(number not in other.weights for other in others):
                continue
            self._known.add(number)
            own = first.weights[number]
            are_equal = all(np.array_equal(other.weights[number], own, equal_nan=True) for other in others)
            if not are_equal and first.shards.get(number, 1) == 1:
                self.apart.add(number)
