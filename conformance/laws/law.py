"""What a law is, and the list of all laws."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc
from typing import Literal, TypeAlias

from conformance.laws import chapters
from conformance.laws.event import Event
from conformance.laws.run import Run, Window

Level: TypeAlias = Literal["MUST", "SHOULD"]

CHAPTERS: dict[str, str] = {
    "acc": "Gradient accumulation",
    "amp": "Automatic mixed precision",
    "apex": "NVIDIA apex",
    "clip": "Gradient clipping",
    "ddp": "DistributedDataParallel",
    "hvd": "Horovod",
}


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
    shows: tuple[Event, ...]
    effect: str | None = None

    @property
    def contradiction(self) -> str:
        must = self.must[:1].upper() + self.must[1:]
        return f"{must}, because {self.because}. However, {self.however}: a contradiction."


@dataclass(frozen=True)
class Check:
    """A law was applied to a window of a rank (None: of all ranks), and was kept or broken there."""

    window: int | None
    rank: int | None
    broken: Broken | None = None


Checker: TypeAlias = Callable[[Run], Iterator[Check]]


@dataclass(frozen=True)
class Law:
    """A rule for trainers.

    id: ``chapter/name``.
    says: one sentence that has MUST or SHOULD in it. Who breaks a MUST does not conform; a SHOULD is a warning.
    why: what goes wrong in the numbers, in two sentences.
    source: where the rule stands.
    mend: a short correct snippet of Python.
    checks: yields a `Check` for each window that the law applies to, and nothing where it does not apply.
    """

    id: str
    says: str
    why: str
    source: str
    mend: str
    checks: Checker

    @property
    def chapter(self) -> str:
        return self.id.partition("/")[0]

    @property
    def level(self) -> Level:
        return "MUST" if "MUST" in self.says else "SHOULD"


_LAWS: dict[str, Law] = {}


def law(id: str, says: str, *, why: str, source: str, mend: str) -> Callable[[Checker], Checker]:
    """Make a law of a function, which should be in `conformance.laws.chapters`.

    Raises:
        ValueError: the chapter is unknown, the id is taken, or the sentence has not one MUST or SHOULD.
    """
    if id.partition("/")[0] not in CHAPTERS:
        raise ValueError(f"{id!r} is of no chapter; there are {', '.join(CHAPTERS)}")
    if id in _LAWS:
        raise ValueError(f"there are two laws {id!r}")
    if says.count("MUST") + says.count("SHOULD") != 1:
        raise ValueError(f"the sentence of {id!r} needs exactly one MUST or SHOULD")

    def add(checks: Checker) -> Checker:
        _LAWS[id] = Law(id, says, " ".join(why.split()), source, cleandoc(mend), checks)
        return checks

    return add


@cache
def laws() -> tuple[Law, ...]:
    """All laws, by id."""
    for module in pkgutil.iter_modules(chapters.__path__):
        import_module(f"{chapters.__name__}.{module.name}")
    return tuple(_LAWS[id] for id in sorted(_LAWS))


def kept(window: Window) -> Check:
    """The law was kept in this window."""
    return Check(window.number, window.rank)


def broken(window: Window, broken: Broken) -> Check:
    """The law was broken in this window."""
    return Check(window.number, window.rank, broken)
