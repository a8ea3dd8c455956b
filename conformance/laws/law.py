"""The type of a law, and the catalogue of all laws."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from inspect import cleandoc, signature
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_type_hints

from conformance.laws import chapters
from conformance.laws.chapters import CHAPTERS

# A watch needs none of these; importing them takes longer than its first steps.
if TYPE_CHECKING:
    from conformance.laws.subjects import GlobalWindow, Rank, Run, Window
    from conformance.trace.events import Event

Level: TypeAlias = Literal["MUST", "SHOULD"]

#: The source of many laws.
GUIDE = 'Determined, PyTorchTrial guide, "The Laws of PyTorchTrial"'


class Kept(Enum):
    """The law applies here, and the trainer kept it."""

    OK = "OK"


OK = Kept.OK


@dataclass(frozen=True)
class Broken:
    """How a trainer broke a law.

    event: the event that breaks it; violations on the same line become one finding.
    expected: what the law requires, as in "`unscale_` before `clip_grad_norm_`".
    observed: what happened instead: "clip (train.py:41) came before unscale (train.py:43)".
    why: why it matters, with the numbers of this run: "the threshold is 1, but gradients carry the loss scale 1024".
    shows: the shortest slice of the trace that proves it, from several ranks if one is not enough.
    effect: what this does to the numbers here, predicted from the trace.
    fault, advice: what the trainer does here, and what to do, if more is known than the law's say.
    origin: the first event with what breaks the law, if `event` only shows it.
    edit: where code changes, if more is known than the law says.
    """

    event: Event
    expected: str
    observed: str
    why: str
    shows: Sequence[Event]
    effect: str | None = None
    fault: str = ""
    advice: str = ""
    origin: Event | None = None
    edit: str = ""


Outcome: TypeAlias = Broken | Kept | None
Outcomes: TypeAlias = Iterator[Broken | Kept]
Subject: TypeAlias = "Window | Rank | GlobalWindow | Run"
Judge: TypeAlias = Callable[[Any], Outcome | Outcomes]
J = TypeVar("J", bound=Judge)


def by_a_watch(_: Any) -> Outcome:
    """Judges nothing: without a plan, `conformance watch` judges what a script does."""
    return None


@dataclass(frozen=True)
class Law:
    """A rule for trainers, or for scripts under `conformance watch`.

    id: ``chapter/name``.
    says: one sentence with one MUST or SHOULD. A trainer that breaks a MUST fails; a broken SHOULD is a warning.
    why: what goes wrong in the numbers, in two sentences.
    fix: a short, correct snippet of Python; for a script, what to do.
    fault: what a trainer that breaks it does, to follow "the trainer": "clips before it unscales". "" for scripts.
    is_seen_later: whether the event only shows the bug, because a call is missing or an earlier one is wrong.
    advice: what to do, for trainers: one imperative sentence.
    edit: where code changes, as in `report/edits.py`. By default the line that breaks the law, unless `is_seen_later`.
    shows: for scripts, the property and its value that reveal the bug; the value is None if no value is intended. None
        for trainers.
    unless: ids of laws that explain the same bug better. If the same subject, or an earlier step of the script, breaks
        one of them too, this law is not reported.
    source: the document that states the rule.
    judges: checks one subject against its plan. Returns a `Broken` or OK, or yields several; returns None if the law
        does not apply or the trace does not show enough to decide.
    scope: the class of its subjects; None for scripts, which have no plan.
    needs: classes of events; windows without an event of any of them are not judged. () for every window.
    latent: how another run goes wrong although the numbers of this one are correct. "" if all harm shows in the numbers
        of the run: then correct numbers clear the trainer.
    """

    id: str
    says: str
    why: str
    fix: str
    shows: tuple[str, str | None] | None = None
    unless: tuple[str, ...] = ()
    source: str = ""
    judges: Judge = by_a_watch
    scope: type[Subject] | None = None
    needs: tuple[type[Event], ...] = ()
    latent: str = ""
    advice: str = ""
    fault: str = ""
    is_seen_later: bool = False
    edit: str = ""

    @property
    def edits(self) -> str:
        """`edit`, or its default."""
        return self.edit or ("" if self.is_seen_later else "change it")

    @property
    def chapter(self) -> str:
        return self.id.partition("/")[0]

    @property
    def level(self) -> Level:
        return "MUST" if "MUST" in self.says else "SHOULD"

    @property
    def needs_plan(self) -> bool:
        """Whether it judges trainers, by their plan, and not scripts."""
        return self.scope is not None

    @property
    def cleared_by_numbers(self) -> bool:
        """Whether correct numbers prove that breaking the law did no harm, in this run and in any other."""
        return self.needs_plan and self.level == "MUST" and not self.latent


_LAWS: dict[str, Law] = {}


def registered(law: Law) -> Law:
    """Adds the law to the catalogue and returns it.

    Raises:
        ValueError: the chapter is unknown, the id is taken, or the sentence does not have exactly one MUST or SHOULD.
    """
    if law.chapter not in CHAPTERS:
        raise ValueError(f"{law.id!r} has no chapter; the chapters are {', '.join(CHAPTERS)}")
    if law.id in _LAWS:
        raise ValueError(f"two laws have the id {law.id!r}")
    if law.says.count("MUST") + law.says.count("SHOULD") != 1:
        raise ValueError(f"the sentence of {law.id!r} needs exactly one MUST or SHOULD")
    return _LAWS.setdefault(law.id, law)


def law(
    id: str,
    says: str,
    *,
    why: str,
    source: str,
    fix: str,
    fault: str,
    is_seen_later: bool = False,
    advice: str = "",
    edit: str = "",
    latent: str = "",
    unless: tuple[str, ...] = (),
    needs: tuple[type[Event], ...] = (),
) -> Callable[[J], J]:
    """Decorator: registers a function in `conformance.laws.chapters` as a law for trainers.

    The type annotation of the function's parameter sets what it judges: a `Window`, a `Rank`, a `GlobalWindow` or a
    `Run`. The other parameters are those of `Law`.

    Raises:
        ValueError: see `registered`.
    """

    def add(judges: J) -> J:
        [parameter] = signature(judges).parameters
        registered(
            Law(
                id,
                says,
                " ".join(why.split()),
                cleandoc(fix),
                unless=unless,
                source=source,
                judges=judges,
                scope=get_type_hints(judges)[parameter],
                needs=needs,
                latent=" ".join(latent.split()),
                advice=advice,
                fault=fault,
                is_seen_later=is_seen_later,
                edit=edit,
            )
        )
        return judges

    return add


@cache
def catalogue() -> tuple[Law, ...]:
    """All laws by chapter; those for trainers by id.

    Raises:
        ValueError: the precedence of the laws is inconsistent, see `in_order`.
    """
    for module in pkgutil.iter_modules(chapters.__path__):
        import_module(f"{chapters.__name__}.{module.name}")
    order = [*CHAPTERS]
    found = tuple(sorted(_LAWS.values(), key=lambda law: (order.index(law.chapter), law.id if law.needs_plan else "")))
    in_order(found)
    return found


@cache
def laws() -> tuple[Law, ...]:
    """The laws for trainers, by id."""
    return tuple(law for law in catalogue() if law.needs_plan)


def in_order(laws: Sequence[Law]) -> tuple[Law, ...]:
    """Sorts the laws: each comes after the laws in its `unless`.

    Raises:
        ValueError: an id in `unless` is unknown, or laws name each other.
    """
    known = {law.id: law for law in laws}
    for law in laws:
        for id in law.unless:
            if id not in known:
                raise ValueError(f"{law.id} has unknown law {id!r} in `unless`")
    try:
        return tuple(known[id] for id in TopologicalSorter({law.id: law.unless for law in laws}).static_order())
    except CycleError as error:
        raise ValueError(f"laws in each other's `unless`: {', '.join(error.args[1][:-1])}") from None
