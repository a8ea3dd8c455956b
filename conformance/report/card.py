"""A problem as every report shows it: what and where, effect, fix, expected, observed, why, evidence, commands."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from conformance.laws.law import Law, laws
from conformance.oracle.faults import KNOWN
from conformance.results import Results
from conformance.results.result_lines import PAIR, PASSED, CaseRecord, Finding, Moment, Reason

from .case_edits import OF_RESUMES, edit_of_call, edits_of, known_lines, single_bugs
from .causes import doing
from .edits import Edit, edit_of, in_names
from .effect import effect
from .grouping import Failure, failures, failures_of
from .laws import page_of, some_ranks
from .places import (
    CALLED_FROM,
    RAISED,
    RESUMES,
    SAVES,
    Place,
    each_once,
    looked_at,
    own_line,
    own_place,
)
from .signs import OR, Cause
from .text import capitalized, cut, distinct, number, one_line, plural, visible

Fact: TypeAlias = tuple[str, str]
"""A label (such as `expected`, `observed` or `why`) and a sentence."""


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
    effect: the effect on training. advice: the fix in words. edit: where code changes. fix: a snippet of Python.
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
    edit: Edit | None = None
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
        return f"{what} ({self.place if self.role in ('at', RAISED) else f'{self.role} {self.place}'})"

    @property
    def seen_in(self) -> str:
        """How often, and where."""
        return ", ".join(filter(None, [self.extent, self.scope]))

    def parts(self) -> Iterator[Part]:
        """What follows the headline, in order."""
        if self.effect:
            yield Part("effect", self.effect)
        headline, file = self.headline, (self.place or "").rpartition(":")[0]
        if self.advice:
            yield Part("fix", self.advice)
        if self.edit:
            yield Part("edit", self.edit.said(file if self.place and self.place in headline else ""))
            yield from [Part("", self.edit.code, "source")] if self.edit.code else []
        if self.fix and not self.edit:
            yield Part("for example", self.fix, "code")
        yield from (Part(label, text) for label, text in self.facts)
        yield from (Part("also", text) for text in self.also)
        for place in self.places:
            # The headline has the line, or its file.
            # Lines besides the edit only say where to look.
            has_code = place.text and (not self.edit or place.label == CALLED_FROM)
            is_told = place.at in headline or (has_code and place.at.rpartition(":")[0] == file)
            if not is_told:
                yield Part(place.label, place.at, "place")
            if has_code and f"`{place.own.strip()}`" not in headline:
                yield Part(place.label if is_told else "", place.code, "source")
        if self.law:
            yield Part("law", page_of(self.law), "link")
        yield from (Part(label, command, "command") for label, command in self.commands)

    def lines(self) -> Iterator[str]:
        """Plain text, each line safe to print; the last is the command that shows it again."""
        yield f"{self.verdict}: {one_line(self.headline)}"
        yield from [one_line(self.seen_in)] if self.seen_in else ()
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

    @property
    def seen_in(self) -> str:
        return f"{self.extent}: {self.scope}"

    def of(self, case: CaseRecord) -> Card:
        """The same card with the commands and the other problems of another case."""
        own = [other for other in self.others if any(case is one for one in other.cases)]
        return replace(self, commands=_commands(case), also=_said(own, [case]))


def cards(results: Results) -> list[CaseCard]:
    """The problems of a run, in the order of the report. Trainers with the same problem share its card."""
    return _linked([_card(_joined(alike), results.cases) for alike in _shared(failures(results))])


def card_of(case: CaseRecord) -> CaseCard:
    """The card of one failed case."""
    bugs = {fault.name: fault.text for fault in KNOWN}
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
    looked, commands = [*looked_at(failure, law, text)], _commands(example)
    bugs = cause.key.split(OR)[:1] if is_known else cause.bugs
    on_some = some_ranks(law, example) if law else ""
    # Laws that are broken too are consequences of what a guard explains.
    is_told = cause.kind == "guard" and bool(reason.advice)
    of_law = (law.advice or text.advice) if law and text and not is_known and not is_told else ""
    of_law = f"on every rank, {of_law}" if of_law and on_some else of_law
    of_error = _advised(example.headline) if example.verdict == "CRASH" else ""
    # The title of an adapter's bug says what to use.
    is_open = cause.kind != "setup" and commands[1:]
    debug = "debug the script that the `reproduce` command below writes" if is_open else None
    known = known_lines(example, law)
    edit = edit_of(edits_of(law, text, bugs, cause, reason, is_known=is_known) or edit_of_call(of_error, known), known)
    # What a resume gets wrong is between save, load and the first step, not where it shows.
    only = (RESUMES, SAVES) if cause.key in OF_RESUMES else ()
    role, where = (looked[0][0], looked[0][1].where) if looked else ("at", None)
    if edit is not None and role != RAISED:
        first = known.get("it", own_place(example, looked[0][1])) if looked else None
        role, where = edit.titled(role, first.at if first else None)
    return CaseCard(
        rule=cause.key.partition("@")[0] if cause.kind == "law" else cause.kind,
        verdict=failure.look.verdict,
        title=failure.text,
        where=where,
        role=role,
        own_line=own_line(example, where) if where else None,
        places=each_once(looked) if edit is None else edit.others(each_once(looked, only)),
        facts=tuple(_facts(failure, law, bugs)),
        slice=law.slice if law else (),
        effect=". ".join(filter(None, _effects(example, law, text))) or None,
        # The law's snippet shows the law's own advice, which the other ranks may follow already.
        fix=law.fix if law and not is_known and not is_told and not law.advice and not on_some else None,
        advice=in_names(of_law or reason.advice or _known_fix(bugs, example) or of_error or debug or "", known) or None,
        edit=edit,
        extent=_counted(failure.cases, every),
        scope=failure.where,
        commands=commands,
        law=law.law if law else None,
        cause=cause,
        cases=failure.cases,
        example=example,
    )


def _facts(failure: Failure, law: Finding | None, bugs: Sequence[str]) -> Iterator[Fact]:
    """What was expected and observed, and why the numbers follow."""
    example, cause = failure.example, failure.cause
    is_known, numbers = cause.kind in ("bug", "pair"), [*_numbers(example)]
    broken = [one for one in example.guards if not one.holds and cause.key in (one.diagnosis, one.name)]
    if law is not None:
        on = some_ranks(law, example)
        observed = f"{on}, {law.observed}" if on else law.observed
        yield from (("expected", law.expected), ("observed", observed), ("why", law.why))
    elif cause.kind == "guard" and broken:
        yield "expected", f"{broken[0].name}: {broken[0].expected}"
    elif numbers:
        yield from numbers
    elif rest := _rest(example.headline, failure.text):
        whole = rest[:_LONGEST].rpartition(". ")[0] if len(rest) > _LONGEST else ""
        yield "observed", f"{whole}." if whole else cut(rest, _LONGEST)
        yield from (("note", note) for note in example.notes if example.verdict == "CRASH")
    if cause.kind in ("factor", "factors", "precision") and cause.bugs:
        yield "known bug", f"{_alike(cause.bugs)} would do that; these cases cannot tell"
    if is_known and law is None:
        whys = {fault.name: fault.why for fault in KNOWN}
        yield from (("why", whys[name]) for name in single_bugs(bugs[0]) if name in whys)
        yield "known bug", _fits(cause)


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
    both = " and ".join(f"`{one}`" for one in name.split(PAIR))
    said = f"{both} gives exactly these numbers" if PAIR not in name else f"{both} together give exactly these numbers"
    return said + (f"; so does {_alike(others)}" if others else "")


def _alike(bugs: Sequence[str]) -> str:
    """Trainers with these bugs, in words."""
    texts = {fault.name: fault.text for fault in KNOWN}
    return f"a trainer that {', or '.join(doing(one, texts) for one in bugs[:_FEW])}"


def _rest(headline: str, title: str) -> str:
    """The part of a headline that neither the title nor the fix has."""
    rest, advice = headline.removeprefix(title.removesuffix(" …")), _advised(headline).partition(": ")[2]
    return capitalized((rest.replace(advice, "") if advice else rest).strip(" …"))


def _known_fix(bugs: Sequence[str], example: CaseRecord) -> str:
    """What to change for a known bug, if there are not too many with the same numbers."""
    has_ranks = example.world_size > 1
    fixes = {fault.name: (has_ranks and fault.fix_of_ranks) or fault.fix for fault in KNOWN}
    found = dict.fromkeys("; ".join(fixes[one] for one in single_bugs(name) if one in fixes) for name in bugs)
    return "; or ".join(found) if len(found) <= _FEW else ""


def _numbers(case: CaseRecord) -> Iterator[Fact]:
    """The first wrong number: expected and observed."""
    if (first := case.first_difference) is not None:
        expected, observed = distinct(first.expected, first.observed)
        name = one_line(first.parameter)
        what = f"{name} after" if first.quantity == "weights" else f"gradient of {name} in"
        allowed = f" (allowed error {number(first.bound, 3)})" if first.bound else ""
        yield "expected", f"{what} step {first.step} is {expected}{allowed}"
        is_lost = first.observed is None and first.quantity == "gradient"
        yield "observed", "the optimizer steps without it" if is_lost else observed


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
