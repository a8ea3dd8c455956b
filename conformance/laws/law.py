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
from conformance.laws.run import GlobalWindow, Rank, Run, Window
from conformance.trace.events import Event

Level: TypeAlias = Literal["MUST", "SHOULD"]

CHAPTERS: dict[str, str] = {
    "acc": "Gradient accumulation",
    "amp": "Automatic mixed precision",
    "apex": "NVIDIA apex",
    "clip": "Gradient clipping",
    "ddp": "DistributedDataParallel",
    "hvd": "Horovod",
}


class Kept(Enum):
    """A law was kept where it applies."""

    OK = "OK"


OK = Kept.OK


@dataclass(frozen=True)
class Broken:
    """How a law was broken: a contradiction between what must be and what was done.

    event: the event that breaks it; findings are told apart by its line.
    must: what must be, as in "`unscale_` must come before `clip_grad_norm_`".
    because: why, with the numbers of this run: "clipping compares the norm with 1 while gradients still carry the
        factor 1024".
    however: what was done instead: "clip (train.py:41) came before unscale (train.py:43)".
    shows: the shortest slice of the trace that shows it; of several ranks where it takes several.
    effect: what that does to the numbers here, predicted from the trace.
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
    says: one sentence that has MUST or SHOULD in it. Who breaks a MUST does not conform; a SHOULD is a warning.
    why: what goes wrong in the numbers, in two sentences.
    source: where the rule stands.
    fix: a short correct snippet of Python.
    judges: judges one subject: it yields how it broke the law, or OK, and nothing where the law does not apply or the
        trace cannot tell.
    scope: the class of its subjects.
    unless: laws that explain better what they break: where one of these is broken too, this one is not reported.
    """

    id: str
    says: str
    why: str
    source: str
    fix: str
    judges: Judge
    scope: type[Subject]
    unless: tuple[str, ...] = ()

    @property
    def chapter(self) -> str:
        return self.id.partition("/")[0]

    @property
    def level(self) -> Level:
        return "MUST" if "MUST" in self.says else "SHOULD"


_LAWS: dict[str, Law] = {}


def law(id: str, says: str, *, why: str, source: str, fix: str, unless: tuple[str, ...] = ()) -> Callable[[J], J]:
    """Make a law of a function, which should be in `conformance.laws.chapters`.

    The annotation of the function's parameter says what it judges: a `Window`, a `Rank`, a `GlobalWindow` or a `Run`.

    Raises:
        ValueError: the chapter is unknown, the id is taken, or the sentence has not one MUST or SHOULD.
    """
    if id.partition("/")[0] not in CHAPTERS:
        raise ValueError(f"{id!r} is of no chapter; there are {', '.join(CHAPTERS)}")
    if id in _LAWS:
        raise ValueError(f"there are two laws {id!r}")
    if says.count("MUST") + says.count("SHOULD") != 1:
        raise ValueError(f"the sentence of {id!r} needs exactly one MUST or SHOULD")

    def add(judges: J) -> J:
        [parameter] = signature(judges).parameters
        scope = get_type_hints(judges)[parameter]
        _LAWS[id] = Law(id, says, " ".join(why.split()), source, cleandoc(fix), judges, scope, unless)
        return judges

    return add


@cache
def laws() -> tuple[Law, ...]:
    """All laws, by id.

    Raises:
        ValueError: the laws' precedence is wrong, see `in_order`.
    """
    for module in pkgutil.iter_modules(chapters.__path__):
        import_module(f"{chapters.__name__}.{module.name}")
    found = tuple(_LAWS[id] for id in sorted(_LAWS))
    in_order(found)
    return found


def in_order(laws: Sequence[Law]) -> tuple[Law, ...]:
    """These laws, each after those that it gives way to.

    Raises:
        ValueError: a law gives way to one that there is not, or laws give way to each other.
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
