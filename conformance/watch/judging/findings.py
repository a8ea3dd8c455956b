"""What a judge finds, collected by law and line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from conformance.watch.judging.laws import LAWS, Law
from conformance.watch.records import Site

_NUMBERS = re.compile(r"\d")


@dataclass
class Finding:
    """law: its id. says: what happened, with numbers. step: of the optimizer, from 0; None if it is of the whole run.
    ranks: where it shows. effect: what it does to the numbers."""

    law: str
    says: str
    step: int | None
    ranks: tuple[int, ...]
    site: Site = None
    effect: str | None = None
    optimizer: int | None = None
    waits: bool = False
    """Whether it holds only if the weights of the ranks drift apart."""

    @property
    def text(self) -> Law:
        return LAWS[self.law]


@dataclass
class Cause:
    """All findings of one law at one line: the first, and how many there are."""

    first: Finding
    ranks: set[int]
    count: int = 1


@dataclass
class Findings:
    """causes: proofs against the script. open: why steps are undecided, each with how often. notes: what to know.
    unsolved: systems of equations of steps that say nothing alone. histories: of each optimizer, see `history.py`.

    checked, conserved: how many steps of a rank there were to judge, and in how many the gradients used are those
    computed.
    """

    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    unsolved: list[Any] = field(default_factory=list)
    histories: dict[Any, Any] = field(default_factory=dict)
    steps: int = 0
    conserved: int = 0

    def add(self, finding: Finding) -> None:
        key = finding.law, str(finding.site)
        cause = self.causes.get(key)
        if cause is None:
            self.causes[key] = Cause(finding, set(finding.ranks))
        else:
            cause.ranks |= set(finding.ranks)
            cause.count += 1

    def undecided(self, why: str, count: int = 1) -> None:
        """Reasons that differ in their numbers are one, with those of the first time."""
        known = next((one for one in self.open if _NUMBERS.split(one, 1)[0] == _NUMBERS.split(why, 1)[0]), why)
        self.open[known] = self.open.get(known, 0) + count

    def note(self, what: str) -> None:
        self.notes[what] = self.notes.get(what, 0) + 1
