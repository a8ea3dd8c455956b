"""The choices of each trainer where several behaviours are valid, and the warnings among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from conformance.results import Results
from conformance.results.result_lines import CaseRecord
from conformance.workloads.behaviour import WORDS, Way, is_declared, warning

from .grouping import smallest
from .text import one_line, plural


@dataclass(frozen=True)
class Done:
    """A choice of a trainer, what it declares, and the cases that show it."""

    way: Way
    declared: str | None
    cases: tuple[CaseRecord, ...]

    @property
    def says(self) -> str:
        return WORDS[self.way].says

    @property
    def is_declared(self) -> bool:
        return is_declared(self.way, self.declared)

    @property
    def example(self) -> CaseRecord:
        return smallest(self.cases)

    @property
    def warning(self) -> str | None:
        """The cost and the fix, if the choice costs the user something and is not declared."""
        fails = self.declared is not None and any(case.failed for case in self.cases)
        return None if fails else warning(self.way, self.declared)


@dataclass(frozen=True)
class Trainers:
    """Trainers with the same choices and the same declarations."""

    names: tuple[str, ...]
    done: tuple[Done, ...]


def behaviour(results: Results) -> list[Trainers]:
    """The choices that the cases of a run show. Warnings come first."""
    ways = get_args(Way)
    by_trainer = defaultdict[str, defaultdict[tuple[Way, str | None], list[CaseRecord]]](lambda: defaultdict(list))
    for case in results.cases:
        for one in case.behaviour:
            by_trainer[case.trainer][one.way, one.declared].append(case)
    alike = defaultdict[tuple[tuple[Way, str | None], ...], list[str]](list)
    for name, shown in by_trainer.items():
        alike[tuple(sorted(shown, key=lambda one: (ways.index(one[0]), one[1] or "")))].append(name)
    found = [
        Trainers(
            tuple(names),
            tuple(Done(*one, tuple(case for name in names for case in by_trainer[name][one])) for one in done),
        )
        for done, names in alike.items()
    ]
    return sorted(found, key=lambda trainers: not any(one.warning for one in trainers.done))


def in_terminal(found: Sequence[Trainers], *, warnings_only: bool) -> Iterator[RenderableType]:
    """A line for each choice, under the names of its trainers."""
    for trainers in found:
        if shown := [one for one in trainers.done if one.warning or not warnings_only]:
            yield Text("\n" + one_line(", ".join(trainers.names)), "bold")
            yield Padding(Group(*(line for one in shown for line in _lines(one))), (0, 0, 0, 2), expand=False)


def _lines(one: Done) -> Iterator[RenderableType]:
    if one.warning is None:
        declared = " (declared)" if one.is_declared else ""
        yield Text.assemble(("· ", "dim"), one.says, (declared, "dim"))
        return
    yield Text.assemble(("! ", "bold yellow"), (one.says, "yellow"))
    where = f"{plural(len(one.cases), 'case')}, such as {one_line(one.example.id)}."
    yield Padding(Text(f"{one.warning} {where}"), (0, 0, 0, 2), expand=False)


def warned(results: Results) -> int:
    """The number of warnings."""
    return sum(len(trainers.names) for trainers in behaviour(results) for one in trainers.done if one.warning)
