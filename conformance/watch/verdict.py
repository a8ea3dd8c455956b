"""The verdict on a watched command: a row for each property, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conformance.laws.chapters.watch_scripts import AS_EXPECTED
from conformance.watch.judging.findings import Cause, Finding, Findings, Open, said
from conformance.watch.judging.properties import CORE, PARTS_OF_LOSSES, VALUES, Property, usual

Verdict: TypeAlias = Literal["CONFORMS", "DOES NOT CONFORM", "UNDECIDED"]
State: TypeAlias = Literal["PROVEN", "WRONG", "OPEN"]
Expected: TypeAlias = Mapping[Property, str]
"""What the user has stated, by property."""


@dataclass(frozen=True)
class Row:
    """of: a property. proven, judged: in how many steps or other cases it was as expected, and was looked at. value:
    what is expected. wrong: violations. open: facts that are not judged."""

    of: Property
    value: str
    proven: int
    judged: int
    wrong: tuple[Cause, ...]
    open: tuple[Open, ...]

    @property
    def state(self) -> State:
        if self.wrong:
            return "WRONG"
        return "PROVEN" if self.proven and self.proven == self.judged and not self.open else "OPEN"

    @property
    def is_of_each_step(self) -> bool:
        """Whether each step was as expected. Gradients that were cleared before any step used them are in none."""
        open_ = [fact for fact in self.open if fact.shows[1] != "discarded" and fact.says.code not in PARTS_OF_LOSSES]
        return bool(self.proven) and self.proven == self.judged and not open_


@dataclass(frozen=True)
class Outcome:
    """rows: of the properties that something was seen of. steps: how many were judged. lacks: whether the watch did not
    see all that happened."""

    rows: tuple[Row, ...]
    steps: int
    lacks: bool

    @property
    def verdict(self) -> Verdict:
        if any(row.wrong for row in self.rows):
            return "DOES NOT CONFORM"
        core = [row for row in self.rows if row.of in CORE]
        are_proven = len(core) == len(CORE) and all(row.is_of_each_step for row in core)
        return "CONFORMS" if are_proven and not self.lacks else "UNDECIDED"

    @property
    def open(self) -> int:
        return sum(row.state == "OPEN" for row in self.rows)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """All violations, those first that show first."""
        every = [cause for row in self.rows for cause in row.wrong]
        return tuple(sorted(every, key=lambda cause: (cause.first.step is None, cause.first.step or 0)))


def outcome(findings: Findings, expected: Expected | None = None) -> Outcome:
    """expected: properties of which the user expects another value than the usual one, or just that."""
    stated = expected or {}
    rows = tuple(row for one in Property if (row := _row(one, findings, stated)) is not None)
    return Outcome(rows, findings.steps, bool(findings.lacks))


def _row(of: Property, findings: Findings, stated: Expected) -> Row | None:
    """None if nothing of the property was seen, and nothing is expected."""
    value = stated.get(of, usual(of))
    proven, judged = _counts(of, findings, stated)
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
    return Row(of, value, proven, judged, tuple(wrong), tuple(facts))


def _is_of(shows: tuple[object, object], of: Property, value: str) -> bool:
    """Whether something shows this property, with another value than the expected one."""
    return shows[0] == of and shows[1] != value


def _counts(of: Property, findings: Findings, stated: Expected) -> tuple[int, int]:
    if of not in CORE:
        return findings.seen[of], findings.seen[of]
    proven = 0
    for shows, count in findings.outcomes.items():
        blocking = [(one, shown) for one, shown in shows if one in CORE and not _is_stated(one, shown, stated)]
        # What is not known of a step is not known of any of the three.
        proven += count * (not any(one == of or shown is None for one, shown in blocking))
    return proven, findings.steps


def _is_stated(of: object, shown: object, stated: Expected) -> bool:
    return isinstance(of, Property) and of in stated and stated[of] == shown


def _against(fact: Open, of: Property, value: str) -> Cause:
    """A stated expectation that does not hold."""
    finding = Finding(AS_EXPECTED, fact.says, fact.step, (), fact.site, said("expected", of=of.value, value=value))
    return Cause(finding, set(), fact.count)


def _is_shown(of: Property, value: str, findings: Findings) -> bool:
    shown = {fact.shows for fact in findings.open.values()} | {cause.first.shows for cause in findings.causes.values()}
    return (of, value) in shown


def verdict(findings: Findings, expected: Expected | None = None) -> Verdict:
    return outcome(findings, expected).verdict


def stated(text: str) -> tuple[Property, str]:
    """What `PROPERTY=VALUE` states. Raises ValueError: one line that says what is wrong and what to write."""
    name, _, value = text.partition("=")
    known = {one.value: one for one in Property}
    if name not in known:
        raise ValueError(f"{name!r} is no property; write one of {', '.join(known)}")
    values = VALUES[known[name]]
    if value not in values:
        raise ValueError(f"{name} has no value {value!r}; write one of {', '.join(values)}")
    return known[name], value
