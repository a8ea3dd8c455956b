"""Places the events of a rank in its plan, in windows and micro-batches, once they are all there.

Which forwards train shows only afterwards: gradients flow through them. A forward for a metric, a dry run or an
evaluation takes no place in the plan, whatever mode the model is in.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

from conformance.trace.events import MalformedEvent
from conformance.trace.hindsight.position import MicroBatches, Position

Line: TypeAlias = Mapping[str, Any]
Place: TypeAlias = tuple[int, int | None]
"""A window, and a micro-batch in it."""


def placed(spec: Mapping[str, Any], rank: int, lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The events of ``rank`` as the recorder wrote them, with what hindsight adds.

    - Every event has the ``window`` and ``micro_batch`` of the last training forward; None before the first.
    - `forward`: whether it is ``extra``. Only the first one of a window keeps its ``weights``.
    - `start` is put before the first training forward.
    - `collective`, `send`, `receive`: the ``phase``.
    - `step`, `skip`: the number of training ``forwards`` before it.

    Raises:
        MalformedEvent: a line lacks what the recorder writes.
    """
    try:
        return _placed(spec, rank, lines)
    except (KeyError, TypeError) as error:
        raise MalformedEvent(f"rank {rank}: {type(error).__name__}: {error}") from error


def _placed(spec: Mapping[str, Any], rank: int, lines: Sequence[Line]) -> list[dict[str, Any]]:
    places = _places(_windows(spec, rank), lines)
    events: list[dict[str, Any]] = []
    # `gradient_change` refers to events by their numbers, which the start moves.
    numbers = {-1: -1}
    at: tuple[int | None, int | None] = (None, None)
    forwards = 0

    def add(line: Line, **fields: Any) -> None:
        head = {"event": line["event"], "rank": line["rank"], "seq": len(events), "time": line["time"]}
        events.append({**head, "window": at[0], "micro_batch": at[1], **_without(line, head), **fields})

    for line in lines:
        kind, fields = line["event"], dict[str, Any]()
        if kind == "forward":
            place = places.get(line["forward"])
            if place is not None and not forwards:
                shared = {name: line[name] for name in ("rank", "time", "where", "called_from") if name in line}
                add({**shared, "event": "start", "weights": line["weights"]})
            if place is None or place[0] == at[0]:
                fields["weights"] = None
            at = place or at
            forwards += place is not None
            fields["extra"] = place is None
        elif kind in ("collective", "send", "receive"):
            fields["phase"] = "training" if forwards else "construction"
        elif kind in ("step", "skip"):
            fields["forwards"] = forwards
        elif kind == "gradient_change":
            fields["since"] = numbers[line["since"]]
        numbers[line["seq"]] = len(events)
        add(line, **fields)
    return events


def _without(line: Line, head: Line) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in head}


def _windows(spec: Mapping[str, Any], rank: int) -> list[MicroBatches]:
    """The micro-batches of each window, as rows; samples with equal inputs are the same row."""
    row = dict[tuple[float, ...], int]()
    rows = [row.setdefault(tuple(x), len(row)) for x in spec["samples"]["x"]]
    rest = iter([[rows[sample] for sample in indices] for indices in spec["micro_batches"][rank]])
    epoch: list[MicroBatches] = []
    while window := list(islice(rest, spec["accumulation"])):
        epoch.append(window)
    epochs: int = spec["epochs"]
    return epoch * epochs


def _places(windows: Sequence[MicroBatches], lines: Sequence[Line]) -> dict[int, Place]:
    """The place of each training forward, by its number.

    A forward that no gradient flows through trains if nothing else takes the place of its rows: its backward was
    forgotten, in the window before or after it.
    """
    rows_of = {line["forward"]: tuple(line["rows"]) for line in lines if line["event"] == "forward"}
    used = dict(_in_order(windows, lines, _used(lines)))
    left = [Counter[int | None](chain.from_iterable(window)) for window in windows]
    for (window, _), rows in {(place, rows_of[number]) for number, place in used.items()}:
        if window < len(left):
            left[window] -= Counter(rows)
    places, numbers = dict(used), list(used)
    for number, rows in rows_of.items():
        if number in used or not rows or None in rows:
            continue
        later = bisect(numbers, number)
        for window in (used[neighbour][0] for neighbour in numbers[max(later - 1, 0) : later + 1]):
            if window < len(left) and Counter(rows) <= left[window]:
                left[window] -= Counter(rows)
                places[number] = window, _micro_batch(windows[window], rows)
                break
    return places


def _used(lines: Sequence[Line]) -> set[int]:
    """The forwards that gradients flow through.

    A step without any backward uses all forwards since the last one: its gradients were made without autograd. In a
    rank that did not finish, the backward of the last forwards is still to come.
    """
    used: set[int] = set()
    since: list[int] = []
    for line in lines:
        kind = line["event"]
        if kind == "forward":
            since.append(line["forward"])
        elif kind in ("backward_end", "autograd_grad"):
            used.update(line["forwards"])
        elif kind in ("step", "skip"):
            if used.isdisjoint(since):
                used.update(since)
            since.clear()
    if not used or (lines[-1]["event"] != "finished" and used.isdisjoint(since)):
        used.update(since)
    return used


def _in_order(windows: Sequence[MicroBatches], lines: Sequence[Line], used: set[int]) -> Iterator[tuple[int, Place]]:
    """The place of each used forward, with its number.

    Rows that come again before a step has ended their window are the same micro-batch going forward again, unless the
    window has them once more.
    """
    position = Position(windows)
    taken_for: dict[tuple[int | None, ...], int | None] = {}
    for line in lines:
        if line["event"] in ("step", "skip"):
            position.has_stepped = True
        if line["event"] != "forward" or line["forward"] not in used:
            continue
        rows, window = tuple(line["rows"]), position.window
        if rows in taken_for and None not in rows and not position.has_stepped and not position.has_next(rows):
            position.micro_batch = taken_for[rows]
        else:
            position.advance(rows)
            if position.window != window:
                taken_for.clear()
            if rows:
                taken_for[rows] = position.micro_batch
        assert position.window is not None
        yield line["forward"], (position.window, position.micro_batch)


def _micro_batch(window: MicroBatches, rows: Sequence[int | None]) -> int | None:
    return next((number for number, micro_batch in enumerate(window) if not set(rows).isdisjoint(micro_batch)), None)
