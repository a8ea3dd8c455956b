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
#: How much of an average an update keeps, by the number of updates before it.
Keeps = Callable[[int], Fraction]


def keeps(average: Average) -> Keeps:
    """As the task asks: all updates count alike in a mean."""
    decay = average.decay
    return (lambda count: Fraction(count, count + 1)) if decay is None else lambda count: decay


@dataclass(frozen=True)
class Averaging:
    """One way to average. ``text`` completes "the trainer ..." for a bug, and is empty if there is none; ``fix`` says
    what to change. ``key`` is shared by bugs that some averages cannot tell apart.

    on_skip: whether a window whose step is skipped updates it too, as torch's reference scripts do.
    starts: with the weights of the first update, as `AveragedModel` does, or the initial ones, as a copy of the model.
    restarts: whether it starts again when training resumes: with the first update, the weights of the stop, or the
        initial ones.
    keeps: instead of the task's: how much of the average an update keeps, by the number of updates before it.
    stored: the format that it is rounded to, if not that of the weights.
    edit: where code changes, as data.
    """

    text: str = ""
    fix: str = ""
    key: str = ""
    updates: Updates = lambda moment: [moment.after]
    on_skip: bool = False
    starts: str = "first"
    restarts: str | None = None
    keeps: Keeps | None = None
    stored: Format | None = None
    edit: str = "change average"

    @property
    def way(self) -> Way:
        return "average_on_skip=update" if self.on_skip else "average_on_skip=wait"


class Running:
    """An average that is updated, as `combined` rounds it in this format."""

    def __init__(self, keeps: Keeps, fmt: Format) -> None:
        self._keeps, self._fmt = keeps, fmt
        self.start(None)

    def start(self, value: Affine | None) -> None:
        """From this value, or that of the first update."""
        self.value, self._count = value, 0 if value is None else 1

    def update(self, weights: Affine) -> None:
        if self.value is None:
            self.value = weights
        else:
            kept = self._keeps(self._count)
            self.value = combined("average", ((kept, self.value), (ONE - kept, weights)), self._fmt, Ledger())
        self._count += 1


_EARLY = "updates its average of the weights before the step instead of once after it"
_OFTEN = "updates its average of the weights in each micro-batch instead of once after each step"
_EACH = "updates its average of the weights in each micro-batch, before the step, instead of once after it"
_ONCE = "update the average once in each window, after `optimizer.step()`"
_OF_UPDATES: tuple[tuple[str, str, Updates], ...] = (
    ("never updates its average of the weights", "", lambda moment: []),
    (_EARLY, _EARLY, lambda moment: [moment.before]),
    # A mean cannot tell whether it was updated more than once.
    (_EACH, _EARLY, lambda moment: [moment.before] * moment.micro_batches),
    (_OFTEN, "", lambda moment: [moment.before] * (moment.micro_batches - 1) + [moment.after]),
    # The last update may wait for the step, and so does not follow a skip.
    (
        _OFTEN,
        "",
        lambda moment: [moment.before] * (moment.micro_batches - 1) + [moment.after] * (not moment.is_skipped),
    ),
    ("updates its average of the weights twice for each step", "", lambda moment: [moment.after] * 2),
)
_DECAY = "use the same decay in all updates, `task.average.decay`"
_MEAN = "divide by the number of updates, with the present one: `average += (weights - average) / count`"


def _of_decay(decay: Fraction) -> Iterator[tuple[str, str, Keeps]]:
    """The wrong decays of a moving average."""
    yield "swaps the two factors of its moving average", "multiply the average by the decay", lambda count: 1 - decay
    for first in (1, 2):
        yield "warms up the decay of its moving average", _DECAY, _warmed(decay, first)


def _warmed(decay: Fraction, first: int) -> Keeps:
    """As TensorFlow's `ExponentialMovingAverage` does with `num_updates`, counted from this number."""
    return lambda count: min(decay, Fraction(count + first, count + first + 9))


def _of_mean() -> Iterator[tuple[str, str, Keeps]]:
    """The wrong counts of a mean."""
    yield "counts one update too few in its mean of the weights", _MEAN, lambda count: Fraction(count - 1, count)
    yield "counts one update too many in its mean of the weights", _MEAN, lambda count: Fraction(count + 1, count + 2)


def right(average: Average) -> list[Averaging]:
    """The correct ways. A moving average may start with the initial weights, which fade."""
    starts = ("first", "initial") if average.kind == "ema" else ("first",)
    return [Averaging(on_skip=on_skip, starts=start) for on_skip, start in product((False, True), starts)]


def wrong(problem: Problem) -> Iterator[Averaging]:
    """The ways of known bugs, the simplest first."""
    average = problem.workload.average
    assert average is not None
    yield Averaging(
        "evaluates with the weights instead of their average",
        "put the average into the model before the evaluation",
        keeps=lambda count: Fraction(0),
        edit="",
    )
    for by in right(average):
        for text, key, updates in _OF_UPDATES:
            yield replace(by, text=text, fix=_ONCE, key=key, updates=updates)
        for restarts in () if problem.resumed_at is None else ("first", "stop", "initial"):
            fix = "save and load the average, and its number of updates"
            text, edit = "does not restore its average of the weights on resume", "change uncounted; restore average"
            yield replace(by, text=text, fix=fix, restarts=restarts, edit=edit)
        for text, fix, kept in _of_mean() if average.decay is None else _of_decay(average.decay):
            yield replace(by, text=text, fix=fix, keeps=kept, edit="change averaging; change average")
        if average.decay is None:
            fix = "start the mean with the weights after the first step"
            yield replace(by, text="counts the initial weights in its mean of the weights", fix=fix, starts="initial")
        for fmt in (BF16, FP16):
            fix = f"keep the average in {problem.precision.master.name}"
            yield replace(by, text=f"keeps its average of the weights in {fmt.name}", fix=fix, stored=fmt)


def averages(problem: Problem, trajectory: Trajectory, by: Averaging) -> Mapping[int, Enclosure]:
    """The average after each window, by its number."""
    average, symbols = problem.workload.average, Symbols()
    assert average is not None
    stepped = {step.window: step.weights for step in trajectory.steps}
    initial = weights = symbols.exactly(problem.workload.start)
    running = Running(by.keeps or keeps(average), by.stored or problem.precision.master)
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
