"""Places the events of a rank in the windows and micro-batches of its plan, after the rank has ended.

Only later events show which forwards train: gradients flow through them. A forward for a metric, a dry run or an
evaluation takes no place in the plan, in any mode of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from conformance.trace.events import MalformedEvent
from conformance.trace.hindsight.by_rows import are_as_planned, by_rows, extras
from conformance.trace.hindsight.by_steps import by_steps, end_windows, fewest_of, run_out, stretches, without_forwards
from conformance.trace.hindsight.lineage import without_copies, without_rehearsals
from conformance.trace.hindsight.position import MicroBatches, Place
from conformance.trace.hindsight.training import Line, forwarded, trained
from conformance.workloads.reading_plan import count_windows, planned_windows, rows


def placed(spec: Mapping[str, Any], rank: int, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The events of ``rank`` as recorded, with these additions:

    - every event: ``window`` and ``micro_batch`` of the last training forward; None before the first.
    - `forward`: whether it is ``extra``. A training forward keeps its ``weights`` only if it is the first of a window,
      or if they have changed within the window.
    - `start`: inserted before the first training forward.
    - `collective`, `send`, `receive`: the ``phase``.
    - `step`, `skip`: the number of training ``forwards`` before it.
    - `report` of a step that was only counted: the window that it ends.

    Raises:
        MalformedEvent: a line lacks a field that the recorder writes.
    """
    try:
        return _placed(spec, rank, lines)
    except (KeyError, TypeError) as error:
        raise MalformedEvent(f"rank {rank}: {type(error).__name__}: {error}") from error


def _placed(spec: Mapping[str, Any], rank: int, lines: Sequence[Line]) -> list[dict[str, Any]]:
    plan = _windows(spec, rank)
    of_windows = [*(window.number for window in planned_windows(spec, rank)), count_windows(spec)]
    first, end = _of_life(spec, len(plan))
    inside = spec.get("resumed_inside", 0) if "life" in spec else 0
    lines = without_rehearsals(without_copies(lines), fewest_of(plan[first:end]), end - first)
    trains, begins = _places_in_life(spec, plan, first, end, inside, lines, of_windows)
    events: list[dict[str, Any]] = []
    # Events refer to others by `seq`, which the inserted start moves.
    numbers = {-1: -1}
    at: tuple[int | None, int | None] = (None, None)
    shown: tuple[int | None, Any] = (None, None)
    forwards = 0

    def add(line: Line, **fields: Any) -> None:
        head = {"event": line["event"], "rank": line["rank"], "seq": len(events), "time": line["time"]}
        others = {name: value for name, value in line.items() if name not in head}
        events.append({**head, "window": at[0], "micro_batch": at[1], **others, **fields})

    for index, line in enumerate(lines):
        kind, fields = line["event"], dict[str, Any]()
        if index in begins:
            if at[0] is None:
                shared = {name: line[name] for name in ("rank", "time", "where", "called_from") if name in line}
                add({**shared, "event": "start", "weights": line.get("weights") if kind == "forward" else None})
            at = begins[index]
        if kind == "forward":
            fields["extra"] = line["forward"] not in trains
            forwards += not fields["extra"]
            if fields["extra"] or (at[0], line.get("weights")) == shown:
                fields["weights"] = None
            else:
                shown = at[0], line.get("weights")
        elif kind in ("collective", "send", "receive"):
            fields["phase"] = "construction" if at[0] is None else "training"
        elif kind in ("step", "skip"):
            fields["forwards"] = forwards
            for name in ("unfinished", "unfinished_elsewhere"):
                if name in line:
                    fields[name] = [numbers[seq] for seq in line[name]]
        elif kind == "gradient_change":
            fields["since"] = numbers[line["since"]]
        elif kind == "report" and line.get("counted") and at[0] is not None:
            fields["step"] = at[0]
        numbers[line["seq"]] = len(events)
        add(line, **fields)
    return events


def _of_life(spec: Mapping[str, Any], windows: int) -> tuple[int, int]:
    """The first window that a process should train, and the window after its last one."""
    life, stop = spec.get("life"), spec.get("resumed_at")
    if life is None or stop is None:
        return 0, windows
    return (0, life["save_after"][-1]) if life["resume_from"] is None else (stop, windows)


def _places_in_life(
    spec: Mapping[str, Any],
    plan: Sequence[MicroBatches],
    first: int,
    end: int,
    inside: int,
    lines: Sequence[Line],
    numbers: Sequence[int],
) -> tuple[Set[int], dict[int, Place]]:
    """`_places` for a process that should train the windows from ``first`` to ``end``. If its rows belong to other
    windows, such as all of them, it has lost its position, and gets the nearest fitting windows, because epochs may
    share rows. ``inside``: micro-batches that it trains beyond its end, or skips at its start. ``numbers``: those of
    the windows, and that of the next one."""
    windows, skipped = plan[first:end], 0
    if inside and end < len(plan):
        windows = [*windows, plan[end][:inside]]
    elif inside:
        windows, skipped = [plan[first][inside:], *windows[1:]], inside
    # In a trainer's own order, rows may fit other windows by chance.
    if (first, end) != (0, len(plan)) and not spec.get("own_order"):
        training, rows_of = trained(lines), forwarded(lines)
        nearest = sorted(range(len(plan)), key=lambda begin: abs(begin - first))
        asked = windows, first, end, skipped
        # A trainer that drops short windows may count only those it steps.
        ends = [number for number, window in enumerate(plan, start=1) if len(window) == len(plan[0])]
        dropping = [] if first else [(plan[:stop], 0, stop, 0) for stop in ends[:end][-1:]]
        for found in (asked, *dropping, *((plan[begin:], begin, len(plan), 0) for begin in nearest)):
            if are_as_planned(found[0], by_rows(found[0], lines, training), rows_of, training):
                windows, first, end, skipped = found
                break
    trains, begins = _places(spec, windows, lines, numbers[first : first + len(windows) + 1])
    return trains, {
        index: (window, micro_batch + skipped if window == numbers[first] and micro_batch is not None else micro_batch)
        for index, (window, micro_batch) in begins.items()
    }


def _places(
    spec: Mapping[str, Any], windows: Sequence[MicroBatches], lines: Sequence[Line], numbers: Sequence[int]
) -> tuple[Set[int], dict[int, Place]]:
    """The training forwards, and the lines where windows and micro-batches start, with their places.

    Rows identify windows. If they do not, because they were transformed or read in another order, steps end windows; if
    steps are missing, clearing gradients ends windows too. If only other ranks have the following window, the events
    between this window and the rank's next one belong to it.
    """
    trains = trained(lines)
    places = by_rows(windows, lines, trains)
    begins: dict[int, Place] = {}
    if not are_as_planned(windows, places, forwarded(lines), trains):
        others = extras(windows, _together(spec, numbers[:-1]), lines, trains)
        trains, places = trains - others, by_rows(windows, lines, trains - others) if others else places
    if not are_as_planned(windows, places, forwarded(lines), trains):
        by_step, by_clearing = (stretches(lines, trains, clearing_ends=ends) for ends in (False, True))
        # Without visible forwards, steps are the only evidence.
        otherwise = None if trains else by_step
        ended = next((steps for steps in (by_step, by_clearing) if end_windows(steps, windows)), otherwise)
        if ended is not None:
            places = by_steps(ended, windows)
            begins.update(without_forwards(ended, windows, lines))
    backward: int | None = None
    for index, line in enumerate(lines):
        if line["event"] == "backward_begin":
            backward = index
        elif line["event"] == "backward_end":
            backward = None
        elif line["event"] == "forward" and line["forward"] in places:
            # Reentrant checkpointing runs forwards within the backward.
            begins.setdefault(index if backward is None else backward, places[line["forward"]])
    beyond = range(numbers[-1], numbers[-1] + len(lines) + 1)
    number_of = [*numbers[:-1], *beyond]
    found = {index: (number_of[window], micro_batch) for index, (window, micro_batch) in begins.items()}
    for window, (number, following) in enumerate(pairwise(numbers)):
        if following > number + 1:
            end = run_out(stretches(lines, trains), places, window, lines)
            if end is not None:
                has_more = window + 1 < len(windows)
                found = {at: place for at, place in found.items() if at < end or (has_more and place[0] >= following)}
                found.setdefault(end, (number + 1, None))
    return places.keys(), found


def _windows(spec: Mapping[str, Any], rank: int) -> list[MicroBatches]:
    """The micro-batches of each window, as rows."""
    row_of = rows(spec)
    planned = [window.micro_batches for window in planned_windows(spec, rank)]
    # Epochs share their windows.
    known = {
        key: [[row_of[sample] for sample in one] for one in window]
        for key, window in {id(window): window for window in planned}.items()
    }
    return [known[id(window)] for window in planned]


def _together(spec: Mapping[str, Any], numbers: Sequence[int]) -> list[Counter[int]]:
    """The rows of each of these windows on all ranks together."""
    row_of, found = rows(spec), {number: Counter[int]() for number in numbers}
    for rank in range(len(spec["orders"][0])):
        for window in planned_windows(spec, rank):
            if window.number in found:
                found[window.number].update(row_of[sample] for one in window.micro_batches for sample in one)
    return list(found.values())
