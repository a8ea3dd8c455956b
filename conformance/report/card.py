"""A problem as every report shows it: what and where, effect, fix, expected, observed, why, evidence, commands."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from conformance.laws.law import Law, laws
from conformance.oracle.faults import CATALOGUE
from conformance.results import Results
from conformance.results.result_lines import ONLY, PAIR, PASSED, CaseRecord, Finding, Moment, Reason

from .causes import doing
from .effect import effect
from .grouping import Failure, failures, failures_of
from .laws import page_of
from .places import Place, each_once, looked_at, own_line
from .signs import OR, Cause
from .text import capitalized, cut, distinct, number, one_line, plural, visible

Fact: TypeAlias = tuple[str, str]
"""A label (`expected`, `observed` or `why`) and a sentence."""


class Part(NamedTuple):
    """A labelled part of a card. kind: prose, a line such as `a.py:1`, code to write, a command, numbered lines of
    source, or the address of a link."""

    label: str
    text: str
    kind: Literal["prose", "place", "code", "command", "source", "link"] = "prose"


_FEW = 3

_LONGEST = 300
"""Characters of an observed message; the case has all of it."""


@dataclass(frozen=True)
class Card:
    """The part of a card that a run and a watch share.

    rule: the id of the law, or the kind of cause. law: the id of a law that has a page.
    title: the diagnosis. where: the first line to look at, and the trainer's line that called it; None if unknown.
    role: of ``where``: "at" if it is wrong by itself. own_line: the user's file and line to annotate. places: the lines
    to look at.
    facts: what was expected, what was observed, and why it matters. slice: the events that show it.
    effect: the effect on training. fix: a snippet of Python. advice: the fix in words if there is no snippet.
    extent: how often. scope: where. commands: what reproduces it, each with a label. also: other problems of its cases.
    """

    rule: str
    verdict: str
    title: str
    where: str | None
    own_line: tuple[str, int] | None
    places: tuple[Place, ...]
    facts: tuple[Fact, ...]
    slice: tuple[Moment, ...]
    effect: str | None
    fix: str | None
    extent: str
    scope: str
    commands: tuple[Fact, ...]
    role: str = "at"
    law: str | None = None
    advice: str | None = None
    also: tuple[str, ...] = ()

    @property
    def place(self) -> str | None:
        """The line for a title: the user's own, or else the first."""
        if self.where and self.own_line and not os.path.isabs(self.own_line[0]):
            return f"{self.own_line[0]}:{self.own_line[1]}"
        return self.where.partition(", called from ")[0] if self.where else None

    @property
    def headline(self) -> str:
        """What and where; for a line that is not wrong by itself, with its role."""
        what = capitalized(self.title).removesuffix(".")
        if self.place is None or any(place.at in what for place in self.places):
            return what
        return f"{what} ({self.place if self.role == 'at' else f'{self.role} {self.place}'})"

    def parts(self) -> Iterator[Part]:
        """What follows the headline, in order."""
        if self.effect:
            yield Part("effect", self.effect)
        if self.advice:
            yield Part("fix", self.advice)
        if self.fix:
            yield Part("" if self.advice else "fix", self.fix, "code")
        yield from (Part(label, text) for label, text in self.facts)
        yield from (Part("also", text) for text in self.also)
        headline, file = self.headline, (self.place or "").rpartition(":")[0]
        for place in self.places:
            # The headline has the line, or its file.
            is_told = place.at in headline or (place.text and place.at.rpartition(":")[0] == file)
            if not is_told:
                yield Part(place.label, place.at, "place")
            if place.text:
                yield Part(place.label if is_told else "", place.code, "source")
        if self.law:
            yield Part("law", page_of(self.law), "link")
        yield from (Part(label, command, "command") for label, command in self.commands)

    def lines(self) -> Iterator[str]:
        """Plain text, each line safe to print; the last is the command that shows it again."""
        yield f"{self.verdict}: {one_line(self.headline)}"
        for label, text, kind in self.parts():
            if kind not in ("code", "source"):
                yield f"{label}: {visible(text) if kind == 'prose' else one_line(text)}"
                continue
            yield from [f"{label}:"] if label else ()
            yield from (f"  {line}" for line in visible(text).splitlines())


@dataclass(frozen=True)
class Other:
    """Another problem of some cases of a card: its ``title``, its ``number`` in the report, and these ``cases``."""

    number: int
    title: str
    cases: tuple[CaseRecord, ...]

    def among(self, cases: Sequence[CaseRecord]) -> str:
        """How many of ``cases`` have it, in words."""
        some = "this case" if len(cases) == 1 else f"{len(self.cases)} of the {len(cases)} cases"
        return f"{some} {'has' if len(self.cases) == 1 else 'have'} another problem"


@dataclass(frozen=True)
class CaseCard(Card):
    """The card of a problem of a run.

    cause: what its cases have in common. cases: all that show it. example: the smallest of them.
    others: the other problems of these cases.
    """

    cause: Cause = field(kw_only=True)
    cases: tuple[CaseRecord, ...] = field(kw_only=True)
    example: CaseRecord = field(kw_only=True)
    others: tuple[Other, ...] = field(kw_only=True, default=())

    def of(self, case: CaseRecord) -> Card:
        """The same card with the commands and the other problems of another case."""
        own = [other for other in self.others if any(case is one for one in other.cases)]
        return replace(self, commands=_commands(case), also=_said(own, [case]))


def cards(results: Results) -> list[CaseCard]:
    """The problems of a run, in the order of the report. Trainers with the same problem share its card."""
    return _linked([_card(_joined(alike), results.cases) for alike in _shared(failures(results))])


def card_of(case: CaseRecord) -> CaseCard:
    """The card of one failed case."""
    bugs = {fault.name: fault.text for fault in CATALOGUE}
    first, *_ = _linked([_card(failure, [case]) for failure in failures_of([case], bugs)])
    return first


def _joined(alike: Sequence[Failure]) -> Failure:
    others = {case: causes for one in alike for case, causes in one.others.items()}
    return replace(alike[0], cases=sum((one.cases for one in alike), ()), others=others)


def _linked(cards: Sequence[CaseCard]) -> list[CaseCard]:
    """Each card with the others that share cases with it."""
    own = [{id(case) for case in card.cases} for card in cards]
    linked = []
    for card in cards:
        both = [tuple(case for case in card.cases if id(case) in of_other) for of_other in own]
        others = tuple(
            Other(number, other.title, some)
            for number, (other, some) in enumerate(zip(cards, both, strict=True), 1)
            if some and other is not card
        )
        linked.append(replace(card, others=others, also=_said(others, card.cases)))
    return linked


def _said(others: Iterable[Other], cases: Sequence[CaseRecord]) -> tuple[str, ...]:
    return tuple(f"{other.among(cases)}: {other.title}" for other in others)


def _shared(found: Iterable[Failure]) -> Iterable[list[Failure]]:
    """Groups failures of several trainers with the same cause. An unexplained one may have another cause in each."""
    groups = defaultdict[object, list[Failure]](list)
    for failure in found:
        groups[failure.cause, failure.text, None if failure.is_explained else failure.example.trainer].append(failure)
    return groups.values()


def _card(failure: Failure, every: Sequence[CaseRecord]) -> CaseCard:
    """every: the cases of the run, to say how many of them show it."""
    law, example, cause = next(iter(failure.findings), None), failure.example, failure.cause
    text = next((one for one in laws() if one.id == law.law), None) if law else None
    is_known, reason = cause.kind in ("bug", "pair"), example.reason or Reason()
    facts, looked = [*_numbers(example)], [*looked_at(failure, law, text)]
    if law is not None:
        facts = [("expected", law.expected), ("observed", law.observed), ("why", law.why)]
    elif not facts and failure.text != example.headline:
        facts = [("observed", cut(example.headline, _LONGEST))]
    if is_known and law is None:
        facts.append(("why", _fits(cause)))
    role, first = looked[0] if looked else ("at", None)
    bugs, commands = cause.key.split(OR)[:1] if is_known else cause.bugs, _commands(example)
    of_law = (law.advice or text.advice) if law and text and not is_known else ""
    debug = "debug with the script of the first command below" if len(commands) > 1 else None
    return CaseCard(
        rule=cause.key.partition("@")[0] if cause.kind == "law" else cause.kind,
        verdict=failure.look.verdict,
        title=failure.text,
        where=first.where if first else None,
        role=role,
        own_line=own_line(example, first.where) if first else None,
        places=each_once(looked),
        facts=tuple(facts),
        slice=law.slice if law else (),
        effect=". ".join(filter(None, _effects(example, law, text))) or None,
        fix=law.fix if law and not is_known else None,
        advice=of_law
        or reason.advice
        or _known_fix(bugs)
        or (example.verdict == "CRASH" and _advised(example.headline))
        or debug,
        extent=_counted(failure.cases, every),
        scope=failure.where,
        commands=commands,
        law=law.law if law else None,
        cause=cause,
        cases=failure.cases,
        example=example,
    )


def _effects(case: CaseRecord, broken: Finding | None, law: Law | None) -> Iterator[str]:
    """The size of the error, and what the law says about it: also on other runs, if the numbers of this one are
    correct."""
    is_latent, is_cut = case.verdict == "FAIL (law)", case.verdict in ("CRASH", "HANG")
    size = "every weight is correct in this run" if is_latent else "training stops" if is_cut else effect(case) or ""
    said = (broken and broken.effect) or ""
    factor = re.search(r"\S+x ", size)
    if factor is None or factor[0] not in said:
        yield size
    yield said.removesuffix(".")
    yield law.latent.removesuffix(".") if law and is_latent else ""


_ADVICE = re.compile(r"\b(you (can|may|need|have|must|should)|please|try|make sure|specify|set|use|pass)\b", re.I)


def _advised(message: str) -> str:
    """The first sentence of an error that says what to do. message: `rank 0 raised TYPE: ...`."""
    sentences = (one for one in re.split(r"(?<=[.!?]) +", message.partition(": ")[2]) if _ADVICE.search(one))
    return next((f"the error says: {one}" for one in sentences), "")


def _fits(cause: Cause) -> str:
    """How known bugs explain the numbers. The title has the first one in words."""
    name, *others = filter(None, cause.key.split(OR))
    if others:
        texts = {fault.name: fault.text for fault in CATALOGUE}
        said = ", or ".join(doing(one, texts) for one in others[:_FEW])
        return f"a trainer that {said} has exactly these numbers too"
    if PAIR in name:
        return "these two known bugs together give exactly these numbers"
    return f"the known bug `{name}` gives exactly these numbers"


def _known_fix(bugs: Sequence[str]) -> str:
    """What to change for a known bug, if there are not too many with the same numbers."""
    fixes = {fault.name: fault.fix for fault in CATALOGUE}
    known = ([one.partition(ONLY)[0] for one in name.split(PAIR)] for name in bugs)
    found = dict.fromkeys("; ".join(fixes[one] for one in names if one in fixes) for names in known)
    return "; or ".join(found) if len(found) <= _FEW else ""


def _numbers(case: CaseRecord) -> Iterator[Fact]:
    """The first wrong number: expected and observed."""
    if (first := case.first_difference) is not None:
        expected, observed = distinct(first.expected, first.observed)
        name = one_line(first.parameter)
        what = f"{name} after" if first.quantity == "weights" else f"gradient of {name} in"
        allowed = f" (allowed error {number(first.bound, 3)})" if first.bound else ""
        yield "expected", f"{what} step {first.step} is {expected}{allowed}"
        yield "observed", observed


def first_difference(case: CaseRecord) -> Iterator[str]:
    """The first wrong number in lines of text."""
    yield from (f"{label}: {text}" for label, text in _numbers(case))


def _commands(case: CaseRecord) -> tuple[Fact, ...]:
    # A script compares numbers, or ends as the trainer does.
    is_shown = case.first_difference is not None or case.verdict in ("CRASH", "HANG")
    return *((("reproduce", case.repro_command),) if is_shown else ()), ("rerun", case.command)


def _counted(cases: Sequence[CaseRecord], every: Sequence[CaseRecord]) -> str:
    """How many of the judged cases of these trainers have it."""
    trainers = {case.trainer for case in cases}
    judged = sum(case.failed or case.verdict in PASSED for case in every if case.trainer in trainers)
    return f"{len(cases)} of {plural(judged, 'case')}"
