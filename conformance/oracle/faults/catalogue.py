"""The catalogue of numeric faults: known bugs of trainers, each as one deviation from the textbook.

Each fault has its own trajectory. A comparison has *power* against it if, at some step, the enclosures of the fault and
the correct answer have no point in common: then no trainer with that fault can pass. A trainer with numbers inside a
fault's enclosure most likely has that fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from conformance.oracle.recurrence import Deviation, Recurrence
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD

Condition = Callable[[Problem], bool]
#: The kind of a call in a trace.
Call: TypeAlias = Literal["clip", "schedule", "exchange"]


@dataclass(frozen=True)
class Fault(Deviation):
    """A known bug.

    conditions: all must be true of a problem for the bug to show in it.
    fix: what to change, in words. fix_of_ranks: the same with several ranks, if that differs.
    at: the call at which the trainer goes wrong, if one does.
    why: how the wrong numbers follow from the bug, in one sentence.
    edit: where code changes, as in `report/edits.py`; "" if no call of a window shows it.
    is_fine: whether bounds need not exclude it in a problem, because they are too wide there, or its effect is within
        the rounding of some correct optimizers. It has a name there if it shows.
    """

    conditions: tuple[Condition, ...]
    fix: str
    why: str
    edit: str = ""
    is_fine: Condition = lambda problem: False
    at: Call | None = None
    fix_of_ranks: str = ""

    @property
    def name(self) -> str:
        """``SumOverRanks`` is ``sum-over-ranks``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.textbook.__name__).lower()

    def applies(self, problem: Problem) -> bool:
        return all(condition(problem) for condition in self.conditions)


CATALOGUE: list[Fault] = []
#: Bugs that no case has to show. They are compared with wrong numbers only, each alone.
RARE: list[Fault] = []


def fault(
    text: str,
    *conditions: Condition,
    fix: str,
    why: str,
    edit: str = "",
    is_fine: Condition = Fault.is_fine,
    at: Call | None = None,
    fix_of_ranks: str = "",
    among: list[Fault] = CATALOGUE,
) -> Callable[[type[Recurrence]], type[Recurrence]]:
    """Decorator: adds a textbook with one wrong decision to a list; ``text`` completes "the trainer ..."."""

    def add(textbook: type[Recurrence]) -> type[Recurrence]:
        among.append(Fault(text, textbook, conditions, fix, why, edit, is_fine, at, fix_of_ranks))
        return textbook

    return add


def applicable(problem: Problem, among: Sequence[Fault] = CATALOGUE) -> list[Fault]:
    return [fault for fault in among if fault.applies(problem)]


def distributed(problem: Problem) -> bool:
    return problem.layout.world_size > 1


def accumulating(problem: Problem) -> bool:
    return problem.layout.accumulation > 1


def computes_precisely(problem: Problem) -> bool:
    """Whether forward and backward have the precision of the weights. If not, bounds are too wide for data that the
    workload was not designed for, and at other weights."""
    return not problem.precision.mixed


def computes_roughly(problem: Problem) -> bool:
    return problem.precision.mixed


def has_wide_bounds(problem: Problem) -> bool:
    """Whether bounds are too wide at weights that the workload was not designed for."""
    return computes_roughly(problem) or not isinstance(problem.workload.optimizer, SGD)


def runs_out(problem: Problem) -> bool:
    """Whether some ranks have no data left at the end."""
    return any(window.with_data < window.world_size for window in problem.windows)


def decays(problem: Problem) -> bool:
    workload = problem.workload
    return bool(workload.optimizer.weight_decay) and (workload.steps > 1 or any(workload.start))


def has_momentum(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return isinstance(optimizer, SGD) and bool(optimizer.momentum) and problem.workload.steps > 1


def clips(problem: Problem) -> bool:
    return problem.workload.clip is not None


def has_groups(problem: Problem) -> bool:
    return bool(problem.workload.groups)


def invites_groups(problem: Problem) -> bool:
    """Whether there is one group, but trainers often split these parameters into several."""
    workload = problem.workload
    return not workload.groups and len({tensor.group(2) for tensor in workload.model.tensors}) > 1


def has_epochs(problem: Problem) -> bool:
    return len(problem.ends) > 1 and problem.workload.windows_of_epoch > 1


def schedules(problem: Problem) -> bool:
    workload = problem.workload
    return bool(workload.schedules) and workload.schedule_by == "step" and workload.steps > 1
