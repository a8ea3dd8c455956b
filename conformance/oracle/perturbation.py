"""The right answer with one sample misplaced: what every comparison must be able to tell from the truth."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.workload import Vector


class OneSampleMoved(Recurrence):
    """In every window one sample is read in place of another: one of the neighbouring rank, else of the next micro-
    batch.

    With one rank and one micro-batch it is the neighbouring sample.
    """

    def coefficients(self, window: Window) -> Vector:
        moved = list(super().coefficients(window))
        own = window.shares[-1][-1]
        if window.world_size > 1:
            neighbour = window.shares[0][-1]
        elif window.length > 1:
            neighbour = window.shares[0][0]
        else:
            neighbour = own[:-1]
        source = next((index for index in reversed(own) if moved[index]), None)
        if source is not None and neighbour:
            moved[neighbour[-1]] += moved[source]
            moved[source] = Fraction(0)
        return tuple(moved)
