"""The lines to look at for a problem, each with its role."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, takewhile
from textwrap import dedent

from conformance.adapter.loading import place_of
from conformance.laws.law import Law
from conformance.oracle.faults import KNOWN
from conformance.oracle.faults.catalogue import Call
from conformance.results.result_lines import ONLY, PAIR, CaseRecord, Finding, Lines, Moment, Reason
from conformance.trace.state.site import AFTER, first_around

from .command import relative
from .grouping import Failure
from .signs import OR
from .text import one_line

_TO_TOOLS = re.compile(r"\s+# ?((type|fmt|pragma|pylint|pyright|mypy):|noqa\b).*")
"""A comment that tells a reader nothing."""


CALLED_FROM = "called from"


@dataclass(frozen=True)
class Place:
    """A line to look at. label: its role. at: `train.py:41`. text: the line, with its neighbours where known."""

    label: str
    at: str
    text: str = ""

    @cached_property
    def numbered(self) -> dict[int, str]:
        """The line and its neighbours in its function, by number."""
        lines = self.text.split("\n") if self.text else []
        first = first_around(self.number, len(lines))
        found = {number: _TO_TOOLS.sub("", one_line(line)) for number, line in enumerate(lines, first)}
        own = found.get(self.number, "")
        begins = [number for number, line in found.items() if number < self.number and _begins(line, own)]
        return {number: line for number, line in found.items() if not begins or number >= begins[-1]}

    def near(self, before: int = 1, after: int = 1) -> dict[int, str]:
        """Its neighbours up to these distances."""
        return {at: text for at, text in self.numbered.items() if -before <= at - self.number <= after}

    @property
    def file(self) -> str:
        return self.at.rpartition(":")[0]

    @property
    def number(self) -> int:
        return int(self.at.rpartition(":")[2])

    @property
    def own(self) -> str:
        """The text of the line itself; "" if unknown."""
        return self.numbered.get(self.number, "")

    @property
    def code(self) -> str:
        """The lines as compilers show them, with an arrow: `> 41 | loss.backward()`."""
        return marked(self.near(after=AFTER if self.label == RESUMES else 1), self.number) if self.text else ""


def _begins(line: str, own: str) -> bool:
    """Whether a function with the line ``own`` starts at ``line``."""
    text = line.lstrip()
    is_outside = len(line) - len(text) < len(own) - len(own.lstrip())
    return is_outside and text.startswith(("def ", "async def ", "class "))


def condition_of(place: Place) -> Place | None:
    """The `if` around a line, if it is the innermost block around it."""
    space = len(place.own) - len(place.own.lstrip())
    before = [number for number in place.numbered if number < place.number]
    outer = [at for at in before if (text := place.numbered[at]).strip() and len(text) - len(text.lstrip()) < space]
    if not outer or not place.numbered[outer[-1]].lstrip().startswith(("if ", "elif ")):
        return None
    return Place("at", f"{place.at.rpartition(':')[0]}:{outer[-1]}", place.numbered[outer[-1]])


def marked(lines: Mapping[int, str], *at: int) -> str:
    """Lines by number, with an arrow at some; blank ones at both ends are left out."""
    shown = [number for number, text in lines.items() if text.strip()] or [*lines]
    width, texts = len(str(max(shown))), dedent("\n".join(lines.values())).split("\n")
    return "\n".join(
        f"{'>' if number in at else ' '} {number:>{width}} | {text}".rstrip()
        for number, text in zip(lines, texts, strict=True)
        if shown[0] <= number <= shown[-1]
    )


def places_of(label: str, where: str, source: Sequence[str]) -> Iterator[Place]:
    """The lines of `train.py:9, called from loop.py:41`; a path may have spaces and commas in it."""
    texts, lines = iter(source), where.split(", called from ")
    if label == "at" and len(lines) > 1:
        label = "inside"
    for at in lines:
        if at.rpartition(":")[2].isdecimal():
            yield Place(label, at, next(texts, ""))
        label = CALLED_FROM


def own_place(case: CaseRecord, line: Lines) -> Place | None:
    """The trainer's own line of these, or else the innermost."""
    found = [*places_of("edit", line.where, line.source)]
    own = own_line(case, line.where)
    mine = [one for one in found if own and int(one.at.rpartition(":")[2]) == own[1]]
    return next(iter(mine[-1:] or found), None)


def each_once(looked: Iterable[tuple[str, Lines]], only: Collection[str] = ()) -> tuple[Place, ...]:
    """The places of these lines, each with its first role. only: those with one of these roles, if any are given."""
    found: dict[str, Place] = {}
    for label, line in looked:
        for place in places_of(label, line.where, line.source) if label in only or not only else ():
            found.setdefault(place.at, place)
    return tuple(found.values())


def own_line(case: CaseRecord, where: str) -> tuple[str, int] | None:
    """The trainer's file, as its target names it, and the last line in it."""
    place = place_of(case.target)
    file = os.path.normpath(place) if place.endswith(".py") else None
    lines = [one.at.rpartition(":") for one in places_of("", where, ())]
    own = [int(line) for path, _, line in lines if file and (file == path or file.endswith(os.sep + path))]
    return (relative(place), own[-1]) if own else None


#: The calls that can cause wrong weights or a wrong gradient, by the kind of event, the likeliest first.
_CALLS = {
    "weights": ("weights", "step", "schedule"),
    "gradient": ("gradient", "backward", "unscale", "clip", "step"),
}

#: The roles of lines that may be wrong.
CALLS = frozenset(call for calls in _CALLS.values() for call in calls)

#: The events of a call at which a known bug is.
_EVENTS: Mapping[Call, tuple[str, ...]] = {
    "clip": ("clip",),
    "schedule": ("schedule",),
    "exchange": ("collective", "send", "receive"),
}

#: The role of a line that only shows the bug.
SEEN = "at or before"

#: The role of the line that loads a checkpoint. What is restored follows it.
RESUMES, SAVES = "resumes at", "saves at"

#: The role of the line of a crash.
RAISED = "raised at"


def calls_of(case: CaseRecord) -> dict[str, Lines]:
    """The lines of the calls of the window to show, by kind of event, and of the checkpoint's `load` and `save`."""
    moments, first = case.timeline.moments if case.timeline else (), case.first_difference
    # Older files have only these.
    found = {one.event: Lines(one.where) for one in moments if one.where}
    found |= case.calls
    if first is not None and first.where is not None:
        found["step" if first.quantity == "weights" else "backward_begin"] = Lines(first.where, first.source)
    found = {kind_of(event): line for event, line in found.items()}
    if case.is_followed:
        # A change of gradients by hand comes after the loss, and so divides last.
        divides = found.get("scaling", found.get("gradient", found.get("loss")))
        found |= {} if divides is None else {"division": divides}
        if "step" in found and found["weights"].where == found["step"].where:
            del found["weights"]
        if "schedule" in found and "rate" in found and found["rate"].where == found["schedule"].where:
            del found["rate"]
    return found | {kind: at for kind, at in (("load", case.read_at), ("save", case.saved_at)) if at is not None}


def kind_of(event: str) -> str:
    """The kind of call that an event notes, as edits name it."""
    return event.removesuffix("_begin").removesuffix("_enter")


def looked_at(failure: Failure, law: Finding | None, text: Law | None) -> Iterator[tuple[str, Lines]]:
    """The lines to look at, each with its role, the likeliest first: where the bug is proven or starts, where it is
    seen, and the calls of the window with the first wrong number."""
    case, reason = failure.example, failure.example.reason or Reason()
    is_seen_later = text is not None and text.is_seen_later
    starts = law.origin if law is not None else None
    if starts is not None:
        yield "starts at", starts
    elif (is_seen_later or (law is None and reason.where is None)) and _is_of_resume(failure):
        yield from [(RESUMES, case.read_at)] if case.read_at else []
        yield from [(SAVES, case.saved_at)] if case.saved_at else []
    calls = [*_calls(case)]
    if law is not None and law.where is not None:
        yield SEEN if is_seen_later else "at", Lines(law.where, law.source)
        steps = [_inner(line.where) for label, line in calls if label == "step"]
        if is_seen_later and starts is None and _inner(law.where) in steps:
            # The step uses what the backward computed.
            yield from (one for one in calls if one[0] == "backward")
    elif reason.where is not None:
        yield RAISED if case.verdict == "CRASH" else "at", Lines(reason.where, reason.source)
    elif case.verdict not in ("CRASH", "HANG"):
        yield from _of_known_bug(failure)
        yield from ((label if number else SEEN, line) for number, (label, line) in enumerate(calls))


def _inner(where: str) -> str:
    """The innermost of the lines."""
    return where.partition(", called from ")[0]


def _is_of_resume(failure: Failure) -> bool:
    """Whether no case without a resume has the bug, and the numbers of the example are correct until its stop."""
    case, first = failure.example, failure.example.first_difference or failure.example.diverged
    windows = {step.step: step.window for step in case.steps}
    return all(one.resumed_at is not None for one in failure.cases) and not (
        first is not None and windows.get(first.step, first.step) < (case.resumed_at or 0)
    )


def _of_known_bug(failure: Failure) -> Iterator[tuple[str, Lines]]:
    """The call at which a known bug is, in the window with the first wrong number."""
    name, timeline = re.split(f"{re.escape(OR)}|{re.escape(PAIR)}", failure.cause.key)[0], failure.example.timeline
    bug = next((one for one in KNOWN if one.name == name.partition(ONLY)[0]), None)
    if bug is None or bug.at is None or timeline is None or failure.cause.kind not in ("bug", "pair"):
        return
    moments = timeline.moments
    if bug.at == "exchange":
        # Ranks also exchange numbers of samples, before the backward or at other lines.
        moments = tuple(takewhile(lambda one: one.event not in ("clip", "step"), _from_backward(moments)))
    lines = [one.where for one in moments if one.event in _EVENTS[bug.at] and one.where]
    if lines and (bug.at != "exchange" or len(set(lines)) == 1):
        yield "at", Lines(lines[0])


def _from_backward(moments: Sequence[Moment]) -> Iterator[Moment]:
    """The moments of the first rank from its first backward on."""
    own = (one for one in moments if one.rank == moments[0].rank)
    return dropwhile(lambda one: one.event != "backward_begin", own)


def _calls(case: CaseRecord) -> Iterator[tuple[str, Lines]]:
    """The calls of the window with the first wrong number, first the one that shows it."""
    first, known = case.first_difference, calls_of(case)
    kinds = _CALLS[first.quantity if first else "gradient"]
    yield from ((kind, known[kind]) for kind in kinds if kind in known)
