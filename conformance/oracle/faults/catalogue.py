"""The catalogue of numeric faults: what trainers get wrong, each as one deviation from the textbook.

Each fault has its own trajectory. A comparison has *power* against it if at some step the fault's enclosure and the
right answer's have no point in common: then no trainer with that fault can pass. A trainer with numbers inside a
fault's enclosure most likely has that fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from conformance.oracle.deviation import Deviation
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem

Condition = Callable[[Problem], bool]


@dataclass(frozen=True)
class Fault(Deviation):
    """``conditions``: what must hold for a problem if a trainer can have this fault in it."""

    conditions: tuple[Condition, ...]

    @property
    def name(self) -> str:
        """``SumOverRanks`` is ``sum-over-ranks``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.textbook.__name__).lower()

    def applies(self, problem: Problem) -> bool:
        return all(condition(problem) for condition in self.conditions)


CATALOGUE: list[Fault] = []


def fault(text: str, *conditions: Condition) -> Callable[[type[Recurrence]], type[Recurrence]]:
    """Add a textbook with one wrong decision to the catalogue."""

    def add(textbook: type[Recurrence]) -> type[Recurrence]:
        CATALOGUE.append(Fault(text, textbook, conditions))
        return textbook

    return add


def applicable(problem: Problem) -> list[Fault]:
    return [fault for fault in CATALOGUE if fault.applies(problem)]
