"""Deviations: the textbook with some of its decisions changed.

The textbook is a class in which each method is one decision. A deviation overrides one or a few of them and calls
``super()`` for what it does not change, so that you can combine several. The catalogue that holds a deviation says
whether it is wrong, accepted, or only a probe of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

from conformance.oracle.recurrence import Recurrence


@dataclass(frozen=True)
class Deviation:
    """``text`` completes "it is a trainer that ...", ``textbook`` overrides the decisions."""

    text: str
    textbook: type[Recurrence]

    @property
    def decisions(self) -> frozenset[str]:
        own = (kind for kind in self.textbook.__mro__ if kind is not Recurrence and issubclass(kind, Recurrence))
        return frozenset(name for kind in own for name in vars(kind) if not name.startswith("__"))


def deviating(deviations: Sequence[Deviation]) -> type[Recurrence]:
    """The textbook with all of these deviations; if two change the same decision, the first wins."""
    return type("Deviating", (*(one.textbook for one in deviations), Recurrence), {})


D = TypeVar("D", bound=Deviation)


def pairs(deviations: Sequence[D]) -> Iterator[tuple[D, D]]:
    """All pairs of deviations that change different decisions, or such that have several parts: the settings of the
    optimizer, and what a resume restores. One that contains the other makes no pair with it."""
    several = {"optimizer", "resumed"}
    return (
        (one, two)
        for one, two in combinations(deviations, 2)
        if one.decisions & two.decisions <= several and not issubclass(two.textbook, one.textbook)
    )
