"""What a watch has found: violations of laws by law and line, and facts that the script's author can settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from conformance.laws.chapters.watch_scripts import LAWS
from conformance.laws.law import Law
from conformance.watch.judging.properties import FACTS, Property
from conformance.watch.judging.windows import Pass, Scene, Window
from conformance.watch.records import Site


@dataclass(frozen=True)
class Said:
    """Something to say, as data: `report/words.py` has the sentence of each code."""

    code: str
    values: Mapping[str, Any]


def said(code: str, **values: Any) -> Said:
    """values: plain numbers, names and lists of these."""
    return Said(code, values)


Shown: TypeAlias = tuple[Property, str | None] | tuple[int, int]
"""A property and the value of it that something shows; None if it shows none. An optimizer and a rank for what is known
at the end only, see `Findings.resolve`."""


@dataclass
class Finding:
    """A violation of a law.

    says: what happened. effect: what it does to the update. step: of the optimizer, from 0; None if it is of the whole
    run. ranks: where it shows. passes: the backward passes that it is about. waits: it is one only if the weights of
    the ranks drift apart. alone: a rank steps on nothing but gradients of its own. is_of_all_steps: it is one only if
    all steps of the optimizer show it; pattern: with this in common. is_bare: it does not say why, as another one may.
    parameters: those that differ between ranks, or are not averaged.
    """

    law: str
    says: Said
    step: int | None
    ranks: tuple[int, ...]
    site: Site = None
    effect: Said | None = None
    optimizer: int | None = None
    passes: frozenset[Pass] = frozenset()
    waits: bool = False
    alone: bool = False
    is_of_all_steps: bool = False
    pattern: str = ""
    is_bare: bool = False
    parameters: frozenset[int] = frozenset()

    @property
    def text(self) -> Law:
        return LAWS[self.law]

    @property
    def shows(self) -> Shown:
        property, value = self.text.shows or ("", None)
        return Property(property), value

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
class Open:
    """A fact that is not judged. says: the first time. count: how often, in steps of a rank or other cases. step: the
    first one; None if it is of the whole run."""

    says: Said
    count: int
    step: int | None = None
    site: Site = None

    @property
    def shows(self) -> Shown:
        return FACTS[self.says.code]


@dataclass
class Findings:
    """causes: violations. open: facts that are not judged, by code. lacks: why the watch did not see all.

    steps: how many steps of a rank were judged, by what each shows beyond the usual: nothing in a step that is right.
    coarse: how many more have gradients that are too coarse or too small to judge. seen: by property, how often
    something was looked at and right.
    unsolved: systems of equations of steps that say nothing alone. factors: of each set of parameters that were clipped
    together the rank, what its factor looks like, and whether it is right. histories: of each optimizer, see
    `history.py`. scenes: by `Finding.key`, the first window that shows it. sources: of each line that a site names, by
    file and line, the path of the file and the text.
    """

    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)
    open: dict[str, Open] = field(default_factory=dict)
    lacks: list[Said] = field(default_factory=list)
    outcomes: Counter[frozenset[Shown]] = field(default_factory=Counter)
    coarse: int = 0
    seen: Counter[Property] = field(default_factory=Counter)
    unsolved: list[Any] = field(default_factory=list)
    factors: list[tuple[int, Finding | None, bool]] = field(default_factory=list)
    histories: list[Any] = field(default_factory=list)
    scenes: dict[tuple[str, str], Scene] = field(default_factory=dict)
    sources: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return self.outcomes.total()

    @property
    def conserved(self) -> int:
        """How many steps used what was computed for them, and nothing else."""
        return self.outcomes[frozenset()]

    def add(self, finding: Finding, windows: Sequence[Window] = (), count: int = 1) -> None:
        """windows: those that show it, of all ranks. count: how often it was found."""
        if windows:
            self.show(finding.key, windows)
        cause = self.causes.get(finding.key)
        if cause is None:
            self.causes[finding.key] = Cause(finding, set(finding.ranks), count)
            return
        cause.ranks |= set(finding.ranks)
        cause.count += count
        if cause.first.is_bare != finding.is_bare and finding.optimizer == cause.first.optimizer:
            # It has begun with the first, whichever says why.
            first, why = (cause.first, finding) if cause.first.is_bare else (finding, cause.first)
            cause.first = replace(why, step=first.step) if _is_before(first.step, why.step) else why
            return
        if (finding.step, finding.optimizer) == (cause.first.step, cause.first.optimizer):
            # Of another rank. What is certain says more than what waits.
            passes = cause.first.passes | finding.passes
            of_all = cause.first.parameters and finding.parameters and cause.first.parameters | finding.parameters
            if cause.first.waits and not finding.waits:
                cause.first = finding
            cause.first.passes, cause.first.parameters = passes, of_all
        elif finding.optimizer == cause.first.optimizer and _is_before(finding.step, cause.first.step):
            # What waits until the end comes later.
            cause.first = finding

    def show(self, key: tuple[str, str], windows: Sequence[Window]) -> None:
        if key not in self.scenes:
            self.scenes[key] = Scene.seen(windows)

    def leave_open(self, says: Said, count: int = 1, step: int | None = None, site: Site = None) -> None:
        """A fact that may be intended: the first of each code is kept, and all are counted."""
        known = self.open.get(says.code)
        if known is None:
            self.open[says.code] = Open(says, count, step, site)
        else:
            known.count += count

    def drop_consequences(self) -> None:
        """What starts well goes wrong only through steps: a mistake of the same optimizer that explains it speaks for
        it, also one that takes several steps to show. What is wrong before the first step has a cause of its own."""

        # What says why gradients differ between ranks.
        laws = LAWS["watch/same-weights"].unless
        whys = [one.first for one in self.causes.values() if one.first.law in laws and not one.first.is_bare]
        explained = {one.optimizer for one in whys}

        def follows(cause: Cause) -> bool:
            own = cause.first
            if own.is_bare:
                return own.optimizer in explained
            every = (other.first for other in self.causes.values() if other.first.law in own.text.unless)
            return bool(own.step) and any(other.optimizer in (own.optimizer, None) for other in every)

        dropped = {key: cause for key, cause in self.causes.items() if follows(cause)}
        self.causes = {key: cause for key, cause in self.causes.items() if key not in dropped}
        # How often it was right before says nothing any more.
        gone = {cause.first.shows[0] for cause in dropped.values()}
        self.seen = Counter({of: count for of, count in self.seen.items() if of not in gone})

    def lack(self, says: Said) -> None:
        """Something was not seen, so the script cannot conform."""
        if says not in self.lacks:
            self.lacks.append(says)

    def judged(self, *shows: Shown, count: int = 1) -> None:
        """A step of a rank. shows: what is not usual in it."""
        self.outcomes[frozenset(shows)] += count

    def resolve(self, waiting: tuple[int, int], shows: Shown | None) -> None:
        """What the steps of an optimizer on a rank show that waited for the end; None if they are right."""
        for outcome in [outcome for outcome in self.outcomes if waiting in outcome]:
            known = (outcome - {waiting}) | ({shows} if shows is not None else set())
            self.outcomes[known] += self.outcomes.pop(outcome)

    def take(self, other: Findings) -> None:
        """The facts and counts of another one, without its causes."""
        for one in other.open.values():
            self.leave_open(one.says, one.count, one.step, one.site)
        for lack in other.lacks:
            self.lack(lack)
        self.outcomes.update(other.outcomes)
        self.coarse += other.coarse
        self.seen.update(other.seen)


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def laws_of(causes: Iterable[Cause]) -> set[str]:
    return {cause.first.law for cause in causes}
