"""The verdict on a watched command, from a row for each property."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from conformance.laws.chapters.watch_scripts import AS_EXPECTED
from conformance.watch.judging.findings import Cause, Finding, Findings, Open, Shown, said
from conformance.watch.judging.properties import CORE, VALUES, Property, usual

Verdict: TypeAlias = Literal["CONFORMS", "DOES NOT CONFORM", "UNDECIDED"]
State: TypeAlias = Literal["PROVEN", "WRONG", "OPEN"]
Expected: TypeAlias = Mapping[Property, str]
"""The user's expectations, by property."""


@dataclass(frozen=True)
class Row:
    """The row of a property. value: expected. proven, judged: the number of steps or other cases that were as expected,
    and of all judged ones. wrong: violations. open: facts that are not judged. because: other properties, without whose
    value the rest of the steps proves nothing. idle: by code, further steps with nothing to judge. ranks: of the run.
    has_parts: they have parts of some parameters."""

    of: Property
    value: str
    proven: int
    judged: int
    wrong: tuple[Cause, ...]
    open: tuple[Open, ...]
    because: tuple[Property, ...] = ()
    idle: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 1
    has_parts: bool = False

    @property
    def state(self) -> State:
        if self.wrong:
            return "WRONG"
        return "PROVEN" if self.proven and self.proven == self.judged and not self.open else "OPEN"


@dataclass(frozen=True)
class Outcome:
    """All rows with observations. steps: the number judged. proven: of these, the number with all of CORE proven.
    lacks: the watch did not see everything."""

    rows: tuple[Row, ...]
    steps: int
    proven: int
    lacks: bool

    @property
    def verdict(self) -> Verdict:
        if any(row.wrong for row in self.rows):
            return "DOES NOT CONFORM"
        core = [row for row in self.rows if row.of in CORE]
        are_proven = len(core) == len(CORE) and all(row.state == "PROVEN" for row in core)
        return "CONFORMS" if are_proven and not self.lacks else "UNDECIDED"

    @property
    def listed(self) -> list[Row]:
        """The rows, wrong ones first, then open ones."""
        return sorted(self.rows, key=lambda row: ("WRONG", "OPEN", "PROVEN").index(row.state))

    @property
    def open(self) -> int:
        return sum(row.state == "OPEN" for row in self.rows)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """All violations, ordered by their first step."""
        every = [cause for row in self.rows for cause in row.wrong]
        return tuple(sorted(every, key=lambda cause: (cause.first.step is None, cause.first.step or 0)))


def outcome(findings: Findings, expected: Expected | None = None) -> Outcome:
    """The rows and the verdict. expected: values that the user stated, usual ones or others."""
    stated = expected or {}
    rows = tuple(row for one in Property if (row := _row(one, findings, stated)) is not None)
    of_all = _proven(CORE, findings, stated)
    proven = min((of_all, *(row.proven for row in rows if row.of in CORE)))
    return Outcome(rows, findings.steps, proven, bool(findings.lacks))


def _row(of: Property, findings: Findings, stated: Expected) -> Row | None:
    """The row of a property; None if nothing was observed."""
    value = stated.get(of, usual(of))
    judged = findings.steps if of in CORE else findings.seen[of]
    proven = _proven([of], findings, stated) if of in CORE else judged
    wrong = [cause for cause in findings.causes.values() if _is_of(cause.first.shows, of, value)]
    facts = [fact for fact in findings.open.values() if _is_of(fact.shows, of, value)]
    if of in stated:
        against = [fact for fact in facts if fact.shows[1] is not None]
        facts = [fact for fact in facts if fact.shows[1] is None]
        if value != usual(of) and judged and not wrong and not against and not _is_shown(of, value, findings):
            against = [Open(said("never-shown", of=of.value, value=value, usual=usual(of)), judged)]
        wrong += [_against(fact, of, value) for fact in against]
    if not (judged or wrong or facts):
        return None
    if of in CORE:
        # Some facts are only known at the end, after their steps were judged.
        proven = max(0, min([proven, *(judged - fact.count for fact in facts)]))
    because = _unvalued(of, findings, stated)
    idle = findings.idle if of in CORE else {}
    return Row(of, value, proven, judged, tuple(wrong), tuple(facts), because, idle, findings.ranks, findings.has_parts)


def _is_of(shows: tuple[object, object], of: Property, value: str) -> bool:
    """Whether it shows this property, with another value than the expected one."""
    return shows[0] == of and shows[1] != value


def _proven(properties: Sequence[Property], findings: Findings, stated: Expected) -> int:
    """The number of steps that show nothing unexpected of these properties of CORE."""
    proven = 0
    for shows, count in findings.outcomes.items():
        # A step without a known value proves none of the three core properties.
        proven += count * (not any(one in properties or shown is None for one, shown in _blocking(shows, stated)))
    return proven


def _blocking(shows: frozenset[Shown], stated: Expected) -> list[Shown]:
    return [one for one in shows if one[0] in CORE and not _is_stated(*one, stated)]


def _unvalued(of: Property, findings: Findings, stated: Expected) -> tuple[Property, ...]:
    """The other properties of CORE without a value in some steps."""
    every = {one for shows in findings.outcomes for one, shown in _blocking(shows, stated) if shown is None}
    return tuple(one for one in CORE if of in CORE and of != one and one in every)


def _is_stated(of: object, shown: object, stated: Expected) -> bool:
    return isinstance(of, Property) and of in stated and stated[of] == shown


def _against(fact: Open, of: Property, value: str) -> Cause:
    """The violation of a stated expectation."""
    finding = Finding(AS_EXPECTED, fact.says, fact.step, (), fact.site, said("expected", of=of.value, value=value))
    return Cause(finding, set(), fact.count)


def _is_shown(of: Property, value: str, findings: Findings) -> bool:
    shown = {fact.shows for fact in findings.open.values()} | {cause.first.shows for cause in findings.causes.values()}
    return (of, value) in shown


def verdict(findings: Findings, expected: Expected | None = None) -> Verdict:
    return outcome(findings, expected).verdict


def stated(text: str) -> tuple[Property, str]:
    """The expectation in `PROPERTY=VALUE`. Raises ValueError: one line with the problem and the valid words."""
    name, _, value = text.partition("=")
    known = {one.value: one for one in Property}
    if name not in known:
        raise ValueError(f"{name!r} is no property; write one of {', '.join(known)}")
    values = VALUES[known[name]]
    if value not in values:
        raise ValueError(f"{name} has no value {value!r}; write one of {', '.join(values)}")
    return known[name], value
