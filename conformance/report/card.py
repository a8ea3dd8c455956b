"""A cause of failure in the order in which all reports show it: what, where, effect, fix, cases, a command."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.adapter.loading import place_of
from conformance.oracle.faults import CATALOGUE
from conformance.results import Results
from conformance.results.records import CaseRecord, Moment, Reason

from .command import relative
from .grouping import Failure, failures, failures_of
from .signs import Cause
from .text import distinct, listed, number, one_line, plural, visible

_TO_TOOLS = re.compile(r"\s+# ?((type|fmt|pragma|pylint|pyright|mypy):|noqa\b).*")
"""A comment that tells a reader nothing."""


@dataclass(frozen=True)
class Card:
    """What a run and a watch have in common.

    Attributes:
    rule: the id of the law, or the kind of cause. title: the diagnosis.
    where: the line to blame: of the framework, and of the trainer that called it. None if numbers alone are known.
    own_line: the user's file and the line in it, if the cause has one there.
    source: these lines, each with its text as it was when it ran: `train.py:41` and `loss.backward()`.
    details: what must hold and what happened instead. slice: the events that show it.
    effect: what that does to training. fix: a snippet of Python. advice: the same in words, where there is no snippet.
    extent: how often it is so. scope: where. commands: what shows it again, each with what it is.
    seen: the line of the step, or the last backward, in which numbers first differed, where none is to blame.
    also: the other causes that some of it has, a sentence each.
    """

    rule: str
    verdict: str
    title: str
    where: str | None
    own_line: tuple[str, int] | None
    source: tuple[tuple[str, str], ...]
    details: tuple[str, ...]
    slice: tuple[Moment, ...]
    effect: str | None
    fix: str | None
    extent: str
    scope: str
    commands: tuple[tuple[str, str], ...]
    advice: str | None = None
    seen: str | None = None
    also: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Plain text, each line safe to print; the last is the command that shows it again."""
        yield f"{self.verdict}: {visible(self.title)}"
        if self.where:
            yield f"at: {one_line(self.where)}"
        if self.seen:
            yield f"seen at: {one_line(self.seen)}"
        yield from self.source_lines()
        yield from map(visible, self.details)
        if self.effect:
            yield f"effect: {visible(self.effect)}"
        if self.fix:
            yield "fix:"
            yield from (f"  {line}" for line in visible(self.fix).splitlines())
        if self.advice:
            yield f"fix: {visible(self.advice)}"
        yield from (f"also: {visible(text)}" for text in self.also)
        yield from (f"{what}: {one_line(command)}" for what, command in self.commands)

    def source_lines(self) -> Iterator[str]:
        """The texts of the lines to blame, as compilers show them: `41 | loss.backward()`."""
        lines = [place.rpartition(":")[2] for place, _ in self.source]
        width = max(map(len, lines), default=0)
        for line, (_, text) in zip(lines, self.source, strict=True):
            yield f"  {line:>{width}} | {_TO_TOOLS.sub('', one_line(text))}"


@dataclass(frozen=True)
class Other:
    """Another cause of some cases of a card: its ``title``, its ``number`` in the report, and these ``cases``."""

    number: int
    title: str
    cases: tuple[CaseRecord, ...]

    def among(self, cases: Sequence[CaseRecord]) -> str:
        """How many of ``cases`` it has, in words."""
        if len(cases) == 1:
            return "this case fails for another cause, too"
        fail = "fails" if len(self.cases) == 1 else "fail"
        return f"{len(self.cases)} of the {len(cases)} cases {fail} for another cause, too"


@dataclass(frozen=True)
class CaseCard(Card):
    """Of cases of a run.

    Attributes:
    cause: what all of its cases have in common. cases: all that fail for this cause. example: the smallest of them.
    others: the other causes that some of them have.
    """

    cause: Cause = field(kw_only=True)
    cases: tuple[CaseRecord, ...] = field(kw_only=True)
    example: CaseRecord = field(kw_only=True)
    others: tuple[Other, ...] = field(kw_only=True, default=())

    def of(self, case: CaseRecord) -> Card:
        """The same with the commands, and the other causes, of another one of its cases."""
        own = [other for other in self.others if any(case is one for one in other.cases)]
        return replace(self, commands=_commands(case), also=_said(own, [case]))


def cards(results: Results) -> list[CaseCard]:
    """The causes of failure of a run, in the order of the report. Trainers that fail for one share its card."""
    return _linked([_card(_joined(alike)) for alike in _shared(failures(results))])


def card_of(case: CaseRecord) -> CaseCard:
    """That of a case that failed, by itself."""
    bugs = {fault.name: fault.text for fault in CATALOGUE}
    first, *_ = _linked([_card(failure) for failure in failures_of([case], bugs)])
    return first


def _joined(alike: Sequence[Failure]) -> Failure:
    others = {case: causes for one in alike for case, causes in one.others.items()}
    return replace(alike[0], cases=sum((one.cases for one in alike), ()), others=others)


def _linked(cards: Sequence[CaseCard]) -> list[CaseCard]:
    """Each card with the others that have cases of it."""
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
    """Those of several trainers that have the same cause. What is not explained may have another one in each."""
    groups = defaultdict[object, list[Failure]](list)
    for failure in found:
        groups[failure.cause, failure.text, None if failure.is_explained else failure.example.trainer].append(failure)
    return groups.values()


def _card(failure: Failure) -> CaseCard:
    law, example = next(iter(failure.findings), None), failure.example
    details = [] if failure.text == example.headline else [example.headline]
    cause, reason, seen = failure.cause, example.reason or Reason(), None
    where, source = reason.where, [*_texts(reason.where, reason.source)]
    if law is not None:
        details.insert(0, law.contradiction)
        where, source = law.where, [*_texts(law.where, law.source)]
    elif where is None and (first := example.first_difference) is not None:
        seen, source = first.where, [*_texts(first.where, first.source)]
    # What has raised or hung shows where it was then.
    looked = looked_at(example) if where is None and example.verdict not in ("CRASH", "HANG") else None
    return CaseCard(
        rule=cause.key.partition("@")[0] if cause.kind == "law" else cause.kind,
        verdict=failure.look.verdict,
        title=failure.text,
        where=where,
        own_line=_own_line(example, where or seen),
        seen=seen,
        source=tuple(source),
        details=(*details, *first_difference(example), *filter(None, [looked])),
        slice=law.slice if law else (),
        effect=law.effect if law else None,
        fix=law.fix if law else None,
        extent=_counted(failure.cases, example),
        scope=failure.where,
        commands=_commands(example),
        cause=cause,
        cases=failure.cases,
        example=example,
    )


def _texts(where: str | None, source: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip([f"{path}:{line}" for path, line in _lines(where)], source, strict=False)


def _lines(where: str | None) -> Iterator[tuple[str, int]]:
    """The files and lines of `train.py:9, called from loop.py:41`; a path may have spaces and commas in it."""
    for place in where.split(", called from ") if where else ():
        path, _, line = place.rpartition(":")
        if line.isdecimal():
            yield path, int(line)


def first_difference(case: CaseRecord) -> Iterator[str]:
    """Where the trainer first differed from the right answer, in a line, if it did."""
    if (first := case.first_difference) is not None:
        expected, observed = distinct(first.expected, first.observed)
        when = "weights after" if first.quantity == "weights" else "gradient in"
        allowed = f", allowed {number(first.bound, 3)}" if first.bound else ""
        where = f"{when} step {first.step}, {one_line(first.parameter)}"
        yield f"first difference: {where}: expected {expected}, observed {observed}{allowed}"


def _own_line(case: CaseRecord, where: str | None) -> tuple[str, int] | None:
    """The trainer's file, as its target names it, and the line in it."""
    place = place_of(case.target)
    file = os.path.normpath(place) if place.endswith(".py") else None
    own = [line for path, line in _lines(where) if file and (file == path or file.endswith(os.sep + path))]
    return (relative(place), own[-1]) if own else None


def _commands(case: CaseRecord) -> tuple[tuple[str, str], ...]:
    # A script compares numbers, or ends as the trainer does.
    is_shown = case.first_difference is not None or case.verdict in ("CRASH", "HANG")
    return *((("script", case.repro_command),) if is_shown else ()), ("again", case.command)


def _counted(cases: Sequence[CaseRecord], example: CaseRecord) -> str:
    """How many there are, and one by name: that of the commands."""
    return f"{plural(len(cases), 'case')}, such as {one_line(example.id)}" if len(cases) > 1 else one_line(example.id)


#: Kinds of event, in the order of a window.
_CALLS = ("forward", "backward_begin", "unscale", "clip", "step", "schedule", "report")


def looked_at(case: CaseRecord) -> str | None:
    """The calls of one rank, each with its line, in a sentence; None if none was seen."""
    timeline = case.timeline
    if timeline is None:
        return None
    lines = defaultdict[str, dict[str, None]](dict)
    for moment in timeline.moments:
        if moment.event in _CALLS and moment.where is not None:
            lines[moment.event][moment.where] = None
    if not lines:
        return None
    seen = [call for call in _CALLS if call in lines]
    calls = [f"{call.removesuffix('_begin')} ({', '.join(map(one_line, lines[call]))})" for call in seen]
    when = "before training" if timeline.window is None else f"in window {timeline.window}"
    return f"no line is to blame by itself; looked at {when}: {listed(calls)}"
