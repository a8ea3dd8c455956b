"""Known bugs that only some windows have: those for which trainers have a second copy of their loop, or a branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import Fault, applicable
from conformance.oracle.recurrence import Deviation, Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem

#: The kinds of windows, in words: whether a window is one, from the problem and the skipped windows.
PLACES: Mapping[str, Callable[[Problem, Set[int], Window], bool]] = {
    "in short windows": lambda problem, skips, window: window.length < window.nominal,
    "at the end of an epoch": lambda problem, skips, window: window.index in {end.index for end in problem.ends},
    "after a resume": lambda problem, skips, window: window.index >= (problem.resumed_at or 0),
    "in the window after an overflow": lambda problem, skips, window: window.index - 1 in skips,
}

#: Decisions that are made for the whole run, or for a parameter.
_ONCE = {"read", "read_on", "resumed", "rule", "trains"}


def places(problem: Problem, skips: Set[int]) -> dict[str, frozenset[int]]:
    """The windows of each kind that other windows are not. If two kinds have the same windows, the first counts."""
    found: dict[frozenset[int], str] = {}
    for words, is_one in PLACES.items():
        own = frozenset(window.index for window in problem.windows if is_one(problem, skips, window))
        if 0 < len(own) < len(problem.windows):
            found.setdefault(own, words)
    return {words: own for own, words in found.items()}


def limited(problem: Problem, windows: Set[int]) -> Iterator[tuple[Fault, Deviation]]:
    """Yields each known bug, and the deviation that only these windows have it."""
    for fault in applicable(problem):
        if not fault.decisions & _ONCE:
            yield fault, Deviation(fault.text, _limited(fault, windows))


def _limited(fault: Fault, windows: Set[int]) -> type[Recurrence]:
    """The textbook of the fault in ``windows``, and the correct one elsewhere."""
    textbook = fault.textbook
    correct = textbook.__mro__[textbook.__mro__.index(Recurrence) - 1]

    class Limited(textbook):  # type: ignore[valid-type, misc]
        def stepped(self, weights: Affine, vector: Affine, rate_of: Callable[[int], Any]) -> Affine:
            for rule, own in self.rules:
                rule.spec = self.optimizer_of(own[0])
            moved: Affine = super().stepped(weights, vector, rate_of)
            return moved

    def chosen(decision: str) -> Callable[..., Any]:
        def decide(self: Recurrence, *of: Any) -> Any:
            after = Limited if self.window.index in windows else correct
            return getattr(super(after, self), decision)(*of)

        return decide

    for decision in fault.decisions & vars(Recurrence).keys():
        setattr(Limited, decision, chosen(decision))
    return Limited
