"""What a judge finds, collected by law and line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.watch.judging.laws import LAWS, Law
from conformance.watch.judging.properties import Property
from conformance.watch.judging.scenes import Pass, Scene
from conformance.watch.judging.windows import Window
from conformance.watch.records import Site

_NUMBERS = re.compile(r"\d")


@dataclass(frozen=True)
class Said:
    """Something to say, as data: `report/words.py` has the sentence of each code."""

    code: str
    values: Mapping[str, Any]


def said(code: str, **values: Any) -> Said:
    """values: plain numbers, names and lists of these."""
    return Said(code, values)


@dataclass
class Open:
    """A fact that is not judged. says: the first time. count: how often, in steps of a rank or other cases. step: the
    first one; None if it is of the whole run."""

    says: Said
    count: int
    step: int | None = None
    site: Site = None


@dataclass
class Finding:
    """law: its id. says: what happened, with numbers. step: of the optimizer, from 0; None if it is of the whole run.
    ranks: where it shows. effect: what it does to the numbers."""

    law: str
    says: Said | str
    step: int | None
    ranks: tuple[int, ...]
    site: Site = None
    effect: Said | str | None = None
    optimizer: int | None = None
    passes: frozenset[Pass] = frozenset()
    """The backward passes that it is about."""
    waits: bool = False
    """Whether it holds only if the weights of the ranks drift apart."""
    alone: bool = False
    """Whether it says that a rank steps on nothing but gradients of its own."""
    is_of_all_steps: bool = False
    """Whether it holds only if all steps of the optimizer say so."""
    pattern: str = ""
    """What then has to be the same in all of them, beside the law."""
    parameters: frozenset[int] = frozenset()
    """Those that differ between ranks, or are not averaged."""

    @property
    def text(self) -> Law:
        return LAWS[self.law]

    @property
    def key(self) -> tuple[str, str]:
        """What findings of one cause share: the law, and the line."""
        return self.law, str(self.site)


@dataclass
class Cause:
    """All findings of one law at one line: the first, and how many there are."""

    first: Finding
    ranks: set[int]
    count: int = 1


@dataclass
class Findings:
    """causes: proofs against the script. open: why steps are undecided, each with how often. notes: what to know.
    unsolved: systems of equations of steps that say nothing alone. factors: of each set of parameters that were clipped
    together the rank, what its factor looks like, and whether it is right. histories: of each optimizer, see
    `history.py`.
    scenes: by `Finding.key`, the first window that shows it. sources: of each line that a site names, by file and line,
    the path of the file and the text.

    steps, conserved: how many steps of a rank there were to judge, and in how many the gradients used are those
    computed.
    """

    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Open] = field(default_factory=dict)
    seen: Counter[Property] = field(default_factory=Counter)
    unsolved: list[Any] = field(default_factory=list)
    factors: list[tuple[int, Finding | None, bool]] = field(default_factory=list)
    histories: list[Any] = field(default_factory=list)
    scenes: dict[tuple[str, str], Scene] = field(default_factory=dict)
    sources: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    steps: int = 0
    conserved: int = 0

    def add(self, finding: Finding, windows: Sequence[Window] = (), count: int = 1) -> None:
        """windows: those that show it, of all ranks. count: how often it was found."""
        if windows:
            self.show(finding.key, windows)
        cause = self.causes.get(finding.key)
        if cause is None:
            self.causes[finding.key] = Cause(finding, set(finding.ranks), count)
        else:
            cause.ranks |= set(finding.ranks)
            cause.count += count
            if (finding.step, finding.optimizer) == (cause.first.step, cause.first.optimizer):
                # Of another rank. What holds anyway says more than what waits.
                passes = cause.first.passes | finding.passes
                if cause.first.waits and not finding.waits:
                    cause.first = finding
                cause.first.passes = passes
            elif finding.optimizer == cause.first.optimizer and _is_before(finding.step, cause.first.step):
                # What waits until the end comes later.
                cause.first = finding

    def show(self, key: tuple[str, str], windows: Sequence[Window]) -> None:
        if key not in self.scenes:
            self.scenes[key] = Scene.seen(windows)

    def leave_open(self, says: Said, count: int = 1, step: int | None = None, site: Site = None) -> None:
        """A fact that may be intended: the first of each code is kept, and all are counted."""
        known = self.facts.get(says.code)
        if known is None:
            self.facts[says.code] = Open(says, count, step, site)
        else:
            known.count += count

    def undecided(self, why: str, count: int = 1) -> None:
        """Reasons that differ in their numbers are one, with those of the first time."""
        _count(self.open, why, count)

    def note(self, what: str) -> None:
        _count(self.notes, what, 1)


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _count(counts: dict[str, int], text: str, count: int) -> None:
    known = next((one for one in counts if _NUMBERS.split(one, 1)[0] == _NUMBERS.split(text, 1)[0]), text)
    counts[known] = counts.get(known, 0) + count
