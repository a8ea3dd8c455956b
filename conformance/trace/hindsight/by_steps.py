"""Places forwards by the steps that end windows, for rows that do not identify their place in the plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from conformance.trace.hindsight.position import MicroBatches, Place
from conformance.trace.hindsight.training import Line, steps_by_hand

#: Events after a step that still belong to its window.
_TAIL = ("update", "schedule", "zero_grad", "unscale")
_SIGNS = ("backward_begin", "autograd_grad", "loss_scaled", "gradient_change")


@dataclass(frozen=True)
class Stretch:
    """The lines from one step to the next, by their indices.

    end: the last line of the step, or the one before gradients are cleared; None if neither follows.
    forwards: numbers of training forwards. signs: lines that show a computation of gradients.
    """

    end: int | None
    forwards: list[int]
    signs: list[int]


def stretches(lines: Sequence[Line], trains: Collection[int], *, clearing_ends: bool = False) -> list[Stretch]:
    """The stretches between the steps of a rank; the last one only if something trains in it.

    clearing_ends: clearing gradients ends a stretch too, for windows that a trainer skips without an event, as with its
    own loss scaler.
    """
    ends = _ends(lines, trains)
    if clearing_ends:
        ends = sorted({*ends, *_clearings(lines, trains)})
    found = [Stretch(end, [], []) for end in [*ends, None]]
    for index, line in enumerate(lines):
        stretch = found[bisect_left(ends, index)]
        if line["event"] == "forward" and line["forward"] in trains:
            stretch.forwards.append(line["forward"])
        elif line["event"] in _SIGNS or line.get("of") == "gradients":
            stretch.signs.append(index)
    if clearing_ends:
        # Weights that change by hand show only in the next forward, after gradients were cleared.
        found = [*(one for one in found[:-1] if one.forwards or one.signs), found[-1]]
    return found if found[-1].forwards else found[:-1]


def end_windows(steps: Sequence[Stretch], windows: Sequence[MicroBatches]) -> bool:
    """Whether steps end windows: their number fits, or each has as many forwards as its window has micro-batches."""
    ended = [step for step in steps if step.end is not None]
    if not ended:
        return False
    if fewest_of(windows) <= len(steps) <= len(windows):
        return True
    return all(len(step.forwards) == len(window) for step, window in zip(ended, windows, strict=False))


def fewest_of(windows: Sequence[MicroBatches]) -> int:
    """The least number of steps: a trainer may drop short windows."""
    return sum(len(window) == len(windows[0]) for window in windows)


def by_steps(steps: Sequence[Stretch], windows: Sequence[MicroBatches]) -> dict[int, Place]:
    """The place of each training forward, by its number."""
    return {
        forward: (window, order * _planned(windows, window) // len(step.forwards))
        for window, step in enumerate(steps)
        for order, forward in enumerate(step.forwards)
    }


def without_forwards(
    steps: Sequence[Stretch], windows: Sequence[MicroBatches], lines: Sequence[Line]
) -> Iterator[tuple[int, Place]]:
    """The line indices and places where windows without visible forwards, and their later micro-batches, start."""
    for window, step in enumerate(steps):
        if step.forwards or step.end is None:
            continue
        yield min([*step.signs, step.end]), (window, 0)
        backwards = [index for index in step.signs if lines[index]["event"] == "backward_begin"]
        last = max(_planned(windows, window) - 1, 0)
        yield from ((index, (window, min(order, last))) for order, index in enumerate(backwards) if order)


def run_out(steps: Sequence[Stretch], places: Mapping[int, Place], last: int, lines: Sequence[Line]) -> int | None:
    """The line where a rank with data up to window ``last`` starts to serve ranks with more data, None if it never
    does."""
    for step in steps:
        if step.end is not None and any(places[forward][0] == last for forward in step.forwards if forward in places):
            after = range(step.end + 1, len(lines))
            return next((index for index in after if lines[index]["event"] not in _TAIL), None)
    return None


def _ends(lines: Sequence[Line], trains: Collection[int]) -> list[int]:
    """The last line of each step. Optimizers that share the model take one step together.

    A step without gradients changes nothing and does not count.
    """
    by_hand = steps_by_hand(lines)
    if by_hand:
        return [index - 1 for index in sorted(by_hand)]
    ends: list[int] = []
    optimizers: set[int | None] = set()
    for index, line in enumerate(lines):
        kind = line["event"]
        if kind in ("step", "skip") and _has_gradients(line):
            optimizer = line.get("optimizer")
            if optimizers and optimizer not in optimizers:
                ends[-1] = index
            else:
                ends.append(index)
                optimizers.clear()
            optimizers.add(optimizer)
        elif kind == "forward" and line["forward"] in trains:
            optimizers.clear()
    # Without a visible step, each report of weights stands for one.
    return ends or [index for index, line in enumerate(lines) if line["event"] == "report"]


def _clearings(lines: Sequence[Line], trains: Collection[int]) -> Iterator[int]:
    """The line before each clearing of gradients of training forwards, or of any gradients without visible forwards."""
    has_gradients = False
    for index, line in enumerate(lines):
        if line["event"] in ("backward_end", "autograd_grad"):
            has_gradients |= not trains or not set(line["forwards"]).isdisjoint(trains)
        elif line["event"] in ("step", "skip", "zero_grad"):
            if has_gradients and line["event"] == "zero_grad":
                yield index - 1
            has_gradients = False


def _has_gradients(line: Line) -> bool:
    gradients = line.get("gradients")
    return not gradients or any(one is not None for one in gradients)


def _planned(windows: Sequence[MicroBatches], window: int) -> int:
    return len(windows[window]) if window < len(windows) else 0
