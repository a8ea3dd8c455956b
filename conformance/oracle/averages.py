"""Averages of weights: correct ones, and those of known bugs, computed from the weights after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from conformance.oracle.affine import Affine, Enclosure, Symbols
from conformance.oracle.recurrence import ONE, Trajectory
from conformance.oracle.rounding import Ledger, combined
from conformance.workloads.behaviour import Way
from conformance.workloads.precision import BF16, FP16, Format
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Average


class Moment(NamedTuple):
    """The weights before a window's step and after it; the same if it is skipped."""

    before: Affine
    after: Affine
    micro_batches: int
    is_skipped: bool


#: The weights that an average is updated with in a window, in order.
Updates = Callable[[Moment], Sequence[Affine]]


@dataclass(frozen=True)
class Averaging:
    """One way to average. ``text`` completes "the trainer ..." for a bug, and is empty if there is none.

    on_skip: whether a window whose step is skipped updates it too, as torch's reference scripts do.
    starts: with the weights of the first update, as `AveragedModel` does, or the initial ones, as a copy of the model.
    restarts: whether it starts again when training resumes: with the first update, the weights of the stop, or the
        initial ones.
    decay: instead of the task's; with 0 it is always equal to the weights.
    stored: the format that it is rounded to, if not that of the weights.
    """

    text: str = ""
    updates: Updates = lambda moment: [moment.after]
    on_skip: bool = False
    starts: str = "first"
    restarts: str | None = None
    decay: Fraction | None = None
    stored: Format | None = None

    @property
    def way(self) -> Way:
        return "average_on_skip=update" if self.on_skip else "average_on_skip=wait"


class Running:
    """An average that is updated, as `combined` rounds it in this format. ``decay``: None for a mean."""

    def __init__(self, decay: Fraction | None, fmt: Format) -> None:
        self._decay, self._fmt = decay, fmt
        self.start(None)

    def start(self, value: Affine | None) -> None:
        """From this value, or that of the first update."""
        self.value, self._count = value, 0 if value is None else 1

    def update(self, weights: Affine) -> None:
        if self.value is None:
            self.value = weights
        else:
            kept = Fraction(self._count, self._count + 1) if self._decay is None else self._decay
            self.value = combined("average", ((kept, self.value), (ONE - kept, weights)), self._fmt, Ledger())
        self._count += 1


_EARLY = "updates its average of the weights before the step instead of once after it"
_OFTEN = "updates its average of the weights in each micro-batch instead of once after each step"
_OF_UPDATES: tuple[tuple[str, Updates], ...] = (
    ("never updates its average of the weights", lambda moment: []),
    (_EARLY, lambda moment: [moment.before]),
    (_EARLY, lambda moment: [moment.before] * moment.micro_batches),
    (_OFTEN, lambda moment: [moment.before] * (moment.micro_batches - 1) + [moment.after]),
    # The last update may wait for the step, and so does not follow a skip.
    (_OFTEN, lambda moment: [moment.before] * (moment.micro_batches - 1) + [moment.after] * (not moment.is_skipped)),
    ("updates its average of the weights twice for each step", lambda moment: [moment.after] * 2),
)


def right(average: Average) -> list[Averaging]:
    """The correct ways. A moving average may start with the initial weights, which fade."""
    starts = ("first", "initial") if average.kind == "ema" else ("first",)
    return [Averaging(on_skip=on_skip, starts=start) for on_skip, start in product((False, True), starts)]


def wrong(problem: Problem) -> Iterator[Averaging]:
    """The ways of known bugs, the simplest first."""
    average = problem.workload.average
    assert average is not None
    yield Averaging("evaluates with the weights instead of their average", decay=Fraction(0))
    for by in right(average):
        for text, updates in _OF_UPDATES:
            yield replace(by, text=text, updates=updates)
        for restarts in () if problem.resumed_at is None else ("first", "stop", "initial"):
            yield replace(by, text="does not restore its average of the weights on resume", restarts=restarts)
        if average.decay is not None:
            yield replace(by, text="swaps the two factors of its moving average", decay=1 - average.decay)
        else:
            yield replace(by, text="counts the initial weights in its mean of the weights", starts="initial")
        for fmt in (BF16, FP16):
            yield replace(by, text=f"keeps its average of the weights in {fmt.name}", stored=fmt)


def averages(problem: Problem, trajectory: Trajectory, by: Averaging) -> Mapping[int, Enclosure]:
    """The average after each window, by its number."""
    average, symbols = problem.workload.average, Symbols()
    assert average is not None
    stepped = {step.window: step.weights for step in trajectory.steps}
    initial = weights = symbols.exactly(problem.workload.start)
    running = Running(average.decay if by.decay is None else by.decay, by.stored or problem.precision.master)
    begin = {"first": None, "initial": initial}
    running.start(begin[by.starts])
    found = dict[int, Enclosure]()
    for window in problem.windows:
        if window.index == problem.resumed_at and by.restarts is not None:
            running.start({**begin, "stop": weights}[by.restarts])
        box = stepped.get(window.index)
        moment = Moment(weights, weights if box is None else _of(symbols, box), window.length, box is None)
        for fed in by.updates(moment) if by.on_skip or not moment.is_skipped else ():
            running.update(fed)
        weights = moment.after
        # Before its first update, an average is the copy of the model that it was made from.
        found[window.index] = (running.value or initial).enclosure()
    return found


def _of(symbols: Symbols, box: Enclosure) -> Affine:
    return symbols.exactly(box.center).widen(box.radius)
