"""Places forwards by their input rows. Forwards of an evaluation that runs backwards belong to no window."""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain

from conformance.trace.hindsight.by_steps import stretches
from conformance.trace.hindsight.position import MicroBatches, Place, Position, Rows
from conformance.trace.hindsight.training import Line, forwarded, steps_by_hand


def by_rows(windows: Sequence[MicroBatches], lines: Sequence[Line], trains: Set[int]) -> dict[int, Place]:
    """The place of each training forward, by its number.

    A forward without gradients also trains if the neighbouring windows, or windows skipped between them, still lack its
    rows: then the trainer forgot its backward.
    """
    rows_of = forwarded(lines)
    used = dict(_in_order(windows, lines, trains))
    others = [(number, rows) for number, rows in rows_of.items() if number not in used and rows and None not in rows]
    if not others:
        return used
    left = [Counter[int | None](chain.from_iterable(window)) for window in windows]
    for (window, _), rows in {(place, rows_of[number]) for number, place in used.items()}:
        if window < len(left):
            left[window] -= Counter(rows)
    places, numbers = dict(used), list(used)
    for number, rows in others:
        later = bisect(numbers, number)
        nearby = [used[neighbour][0] for neighbour in numbers[max(later - 1, 0) : later + 1]]
        for window in (*nearby, *range(min(nearby, default=0) + 1, max(nearby, default=0))):
            if window < len(left) and Counter(rows) <= left[window]:
                left[window] -= Counter(rows)
                places[number] = window, _micro_batch(windows[window], rows)
                break
    return places


def are_as_planned(
    windows: Sequence[MicroBatches], places: Mapping[int, Place], rows: Mapping[int, Rows], trains: Set[int]
) -> bool:
    """Whether rows prove these places: each forward has rows of one micro-batch, and windows follow one another, except
    that short ones may be skipped.

    All rows of a window run forward, perhaps repeatedly. Rows may be missing in the last window, and in a skipped one,
    in which no forward ``trains``.
    """
    complete = {places[number][0] for number in trains & places.keys()}
    seen: defaultdict[int, set[int | None]] = defaultdict(set)
    last = -1
    for number in sorted(places):
        window, _ = places[number]
        if window < last or window >= len(windows):
            return False
        if any(len(windows[skipped]) == len(windows[0]) for skipped in range(last + 1, window)):
            return False
        if not rows[number] or not any(set(rows[number]).issubset(micro_batch) for micro_batch in windows[window]):
            return False
        seen[window].update(rows[number])
        last = window
    return last >= 0 and all(seen[window] >= set(chain(*windows[window])) for window in complete - {last})


def _in_order(windows: Sequence[MicroBatches], lines: Sequence[Line], used: Set[int]) -> Iterator[tuple[int, Place]]:
    """The number and place of each used forward. Steps end windows, here or on a rank that sends the weights."""
    position = Position(windows)
    by_hand = steps_by_hand(lines) | {*_sent(lines)}
    for index, line in enumerate(lines):
        if line["event"] in ("step", "skip") or index in by_hand:
            position.has_stepped = True
        if line["event"] == "forward" and line["forward"] in used:
            yield line["forward"], position.take(tuple(line["rows"]))


def _sent(lines: Sequence[Line]) -> Iterator[int]:
    """The line indices of forwards with other weights than the previous forward, after ranks exchanged weights."""
    weights, were_sent = None, False
    for index, line in enumerate(lines):
        if line["event"] in ("collective", "receive"):
            were_sent |= line.get("of") == "parameters"
        elif line["event"] == "forward":
            if were_sent and weights is not None and line.get("weights") != weights:
                yield index
            weights, were_sent = line.get("weights"), False


def _micro_batch(window: MicroBatches, rows: Sequence[int | None]) -> int | None:
    return next((number for number, micro_batch in enumerate(window) if not set(rows).isdisjoint(micro_batch)), None)


def extras(
    windows: Sequence[MicroBatches], together: Sequence[Counter[int]], lines: Sequence[Line], trains: Set[int]
) -> set[int]:
    """The extra forwards before those of a window, if the last rows before each step are those of a planned window.

    None if all their rows are rows that the ranks read ``together`` in the next window: this rank may have read them
    for another rank.
    """
    if not windows:
        return set()
    rows_of, longest = forwarded(lines), max(map(len, windows))
    found, is_beyond, at = set[int](), False, 0
    for stretch in stretches(lines, trains):
        others, is_open = stretch.forwards, True
        while others and is_open and at < len(windows):
            size = None if stretch.end is None else _size([rows_of[number] for number in reversed(others)], windows[at])
            if size is not None:
                others, is_open = others[:-size], False
            elif (size := _size([rows_of[number] for number in others], windows[at])) is not None:
                # A window that no step ends.
                others = others[size:]
            elif len(windows[at]) == longest:
                return found if is_beyond and stretch.end is None else set()
            at += 1
        if others and is_open and stretch.end is not None:
            return set()
        found.update(others)
        is_beyond |= not Counter(chain.from_iterable(rows_of[number] for number in others)) <= together[at - 1]
    return found if is_beyond else set()


def _size(forwards: Iterable[Rows], window: MicroBatches) -> int | None:
    """The number of first forwards with exactly the rows of a window; None if there is no such number."""
    left = Counter[int | None](chain.from_iterable(window))
    for number, rows in enumerate(forwards, start=1):
        if not rows or not Counter(rows) <= left:
            return None
        left -= Counter(rows)
        if not left:
            return number
    return None
