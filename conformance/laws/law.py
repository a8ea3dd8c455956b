"""What a law is, and the list of all laws."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from inspect import cleandoc, signature
from typing import Any, Literal, TypeAlias, TypeVar, get_type_hints

from conformance.laws import chapters
from conformance.laws.chapters import CHAPTERS
from conformance.laws.run import GlobalWindow, Rank, Run, Window
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
    must: the requirement, as in "`unscale_` must come before `clip_grad_norm_`".
    because: why it matters, with the numbers of this run: "clipping compares the norm with 1 while gradients still
        carry the factor 1024".
    however: what happened instead: "clip (train.py:41) came before unscale (train.py:43)".
    shows: the shortest slice of the trace that proves it, from several ranks if one is not enough.
    effect: what this does to the numbers here, predicted from the trace.
    """

    event: Event
    must: str
    because: str
    however: str
    shows: Sequence[Event]
    effect: str | None = None

    @property
    def contradiction(self) -> str:
        must = self.must[:1].upper() + self.must[1:]
        return f"{must}, because {self.because}. However, {self.however}: a contradiction."


Outcomes: TypeAlias = Iterator[Broken | Kept]
Subject: TypeAlias = Window | Rank | GlobalWindow | Run
Judge: TypeAlias = Callable[[Any], Outcomes]
J = TypeVar("J", bound=Judge)


@dataclass(frozen=True)
class Law:
    """A rule for trainers.

    id: ``chapter/name``.
    says: one sentence with one MUST or SHOULD. A trainer that breaks a MUST fails; a broken SHOULD is a warning.
    why: what goes wrong in the numbers, in two sentences.
    source: the document that states the rule.
    fix: a short, correct snippet of Python.
    watched: ids of the laws that hold a script to the same in a watch, where there is no plan. () if none does.
    unwatched: what of it no watch sees, and why. "" if a watch sees all of it.
    latent: how another run goes wrong where the numbers of this one are right. "" if the numbers of a run show all harm
        that the law prevents: then a run with right numbers has done the same in another way, and is not condemned.
    judges: checks one subject. Yields a `Broken` or OK; yields nothing if the law does not apply or the trace does not
        show enough to decide.
    scope: the class of its subjects.
    needs: classes of events; windows without an event of any of them are not judged. () for every window.
    unless: ids of laws that explain the same mistake better. If one of them is broken too, this law is not reported.
    """

    id: str
    says: str
    why: str
    source: str
    fix: str
    judges: Judge
    scope: type[Subject]
    unless: tuple[str, ...] = ()
    needs: tuple[type[Event], ...] = ()
    latent: str = ""
    watched: tuple[str, ...] = ()
    unwatched: str = ""

    @property
    def chapter(self) -> str:
        return self.id.partition("/")[0]

    @property
    def level(self) -> Level:
        return "MUST" if "MUST" in self.says else "SHOULD"

    @property
    def gives_way(self) -> bool:
        """Whether right numbers prove that breaking the law did no harm, in this run and in any other."""
        return self.level == "MUST" and not self.latent


_LAWS: dict[str, Law] = {}


def law(
    id: str,
    says: str,
    *,
    why: str,
    source: str,
    fix: str,
    watched: tuple[str, ...] = (),
    unwatched: str = "",
    latent: str = "",
    unless: tuple[str, ...] = (),
    needs: tuple[type[Event], ...] = (),
) -> Callable[[J], J]:
    """Decorator: registers a function in `conformance.laws.chapters` as a law.

    The type annotation of its parameter says what it judges: a `Window`, a `Rank`, a `GlobalWindow` or a `Run`. The
    other parameters are those of `Law`.

    Raises:
        ValueError: the chapter is unknown, the id is taken, the sentence does not have exactly one MUST or SHOULD, or
            nothing says whether a watch checks it.
    """
    if id.partition("/")[0] not in CHAPTERS:
        raise ValueError(f"{id!r} belongs to no chapter; the chapters are {', '.join(CHAPTERS)}")
    if id in _LAWS:
        raise ValueError(f"two laws have the id {id!r}")
    if says.count("MUST") + says.count("SHOULD") != 1:
        raise ValueError(f"the sentence of {id!r} needs exactly one MUST or SHOULD")
    if not watched and not unwatched:
        raise ValueError(f"say under `watched` which laws of a watch check {id!r}, or under `unwatched` why none does")

    def add(judges: J) -> J:
        [parameter] = signature(judges).parameters
        scope = get_type_hints(judges)[parameter]
        _LAWS[id] = Law(
            id,
            says,
            " ".join(why.split()),
            source,
            cleandoc(fix),
            judges,
            scope,
            unless,
            needs,
            " ".join(latent.split()),
            watched,
            unwatched,
        )
        return judges

    return add


@cache
def laws() -> tuple[Law, ...]:
    """All laws, by id.

    Raises:
        ValueError: the precedence of the laws is inconsistent, see `in_order`.
    """
    for module in pkgutil.iter_modules(chapters.__path__):
        import_module(f"{chapters.__name__}.{module.name}")
    found = tuple(_LAWS[id] for id in sorted(_LAWS))
    in_order(found)
    return found


def in_order(laws: Sequence[Law]) -> tuple[Law, ...]:
    """The laws in an order in which each comes after the laws that it gives way to.

    Raises:
        ValueError: a law gives way to an unknown law, or laws give way to each other.
    """
    known = {law.id: law for law in laws}
    for law in laws:
        for id in law.unless:
            if id not in known:
                raise ValueError(f"{law.id} gives way to {id!r}, and there is no such law")
    try:
        return tuple(known[id] for id in TopologicalSorter({law.id: law.unless for law in laws}).static_order())
    except CycleError as error:
        raise ValueError(f"these laws give way to each other: {', '.join(error.args[1][:-1])}") from None
