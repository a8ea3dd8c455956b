"""Follows a rank through its plan: finds the window and micro-batch of each forward by its rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TypeAlias

Rows: TypeAlias = tuple[int | None, ...]
"""The rows of a forward; None for a row that is no sample, () if unknown."""
MicroBatches: TypeAlias = Sequence[Sequence[int]]
Place: TypeAlias = tuple[int, int | None]
"""A window, and a micro-batch in it."""


class Position:
    """Follows windows of micro-batches of rows.

    has_stepped: whether an optimizer has stepped in the window, set by the caller. Rows that repeat after a step belong
    to another window.

    Rows belong to the current window until it is complete, then to the next window that has them. Rows of a later
    window mean that samples were dropped. A forward of several micro-batches counts as the first of them. After the
    plan each step ends a window, or a trainer that never stops would have all its rows in the last one.

    A trainer may distribute the samples over the ranks in its own way. From the first rows that fit no window of this
    rank on, rows are only counted against the planned sizes.
    """

    def __init__(self, windows: Sequence[MicroBatches]) -> None:
        self.has_stepped = False
        self._windows = windows
        self._plan = [
            *((number, at, tuple(rows)) for number, window in enumerate(windows) for at, rows in enumerate(window)),
            (len(windows), 0, ()),
        ]
        self._ends = list(accumulate(len(rows) for _, _, rows in self._plan[:-1]))
        self._is_as_planned, self._is_counting = True, False
        self._window: int | None = None
        self._micro_batch: int | None = None
        # The number of rows so far, by the plan.
        self._seen = 0
        # For the current window: rows left of each micro-batch, rows of each forward, and micro-batches of these rows.
        self._left: list[Counter[int | None]] = []
        self._forwarded: list[Counter[int | None]] = []
        self._taken: dict[Rows, int | None] = {}

    def take(self, rows: Rows) -> Place:
        """The place of the next forward, which has these rows.

        Rows that repeat before a step are the same micro-batch again, unless the window has them once more.
        """
        window = self._window
        if rows in self._taken and None not in rows and not self.has_stepped and not self._has_next(rows):
            self._micro_batch = self._taken[rows]
        else:
            self._advance(rows)
            if self._window != window:
                self.has_stepped, self._taken = False, {}
            if rows:
                self._taken[rows] = self._micro_batch
        assert self._window is not None
        return self._window, self._micro_batch

    @property
    def _next(self) -> tuple[int, int, Rows]:
        """The window, micro-batch and rows that follow in the plan."""
        return self._plan[bisect_right(self._ends, self._seen)]

    def _has_next(self, rows: Rows) -> bool:
        """Whether the window has these rows once more."""
        if self._is_as_planned or self._is_counting:
            window, _, planned = self._next
            return window == self._window and (self._is_counting or planned == rows)
        return Counter(rows) <= self._rest

    @property
    def _rest(self) -> Counter[int | None]:
        """The rows of the window that are left."""
        return sum(self._left, Counter[int | None]())

    @cached_property
    def _holding(self) -> Mapping[int | None, Sequence[tuple[Counter[int | None], Sequence[int]]]]:
        """For each row, the rows and numbers of the windows with it. Epochs repeat their windows."""
        numbers = defaultdict[int, list[int]](list)
        for number, window in enumerate(self._windows):
            numbers[id(window)].append(number)
        found = defaultdict[int | None, list[tuple[Counter[int | None], Sequence[int]]]](list)
        for alike in numbers.values():
            rows = Counter[int | None](chain(*self._windows[alike[0]]))
            for row in rows:
                found[row].append((rows, alike))
        return found

    @cached_property
    def _ends_of_windows(self) -> list[int]:
        """The rows up to the end of each window."""
        return list(accumulate(sum(map(len, window)) for window in self._windows))

    def _advance(self, rows: Rows) -> None:
        following, at, planned = self._next
        # Nearly all forwards are as planned, so this must be fast.
        if self._is_as_planned and rows and rows == planned:
            self._window, self._micro_batch, self._seen = following, at, self._seen + len(rows)
            return
        beyond = -1 if self._window is None else self._window + self.has_stepped
        if beyond >= following == len(self._windows):
            self._window, self._micro_batch = beyond, at
            return
        if self._is_as_planned:
            self._leave_plan()
        known = Counter[int | None](row for row in rows if row is not None)
        window = None if self._is_counting or not known else self._window_of(known)
        if window is None:
            self._is_counting = True
            self._window, self._micro_batch, self._seen = following, at, self._seen + len(rows or planned)
        else:
            self._consume(known, window)

    def _leave_plan(self) -> None:
        self._is_as_planned = False
        planned = () if self._window is None else self._windows[self._window]
        window = [Counter[int | None](micro_batch) for micro_batch in planned]
        done = sum(number == self._window for number, _, _ in self._plan[: bisect_right(self._ends, self._seen)])
        self._forwarded, self._left = window[:done], [Counter[int | None]() for _ in window[:done]] + window[done:]

    def _window_of(self, rows: Counter[int | None]) -> int | None:
        """The window that has all these rows; None if no such window is near."""
        rest = self._rest
        if rows <= rest or (rest and rows in self._forwarded and not self.has_stepped):
            return self._window
        candidates = min((self._holding.get(row, ()) for row in rows), key=len)
        found = [numbers for of_window, numbers in candidates if rows <= of_window]
        begins = 0 if self._window is None else self._window + 1
        later = (numbers[at] for numbers in found if (at := bisect_left(numbers, begins)) < len(numbers))
        return min(later, default=self._window if found else None)

    def _consume(self, rows: Counter[int | None], window: int) -> None:
        if window != self._window:
            self._window, self._forwarded = window, []
            self._left = [Counter(micro_batch) for micro_batch in self._windows[window]]
        # The first micro-batch that has one of the rows left; else the first that had one.
        has = (at for row in rows for at, left in enumerate(self._left) if left[row] > 0)
        had = (at for at, left in enumerate(self._left) if not rows.keys().isdisjoint(left))
        self._micro_batch = next(chain(has, had), self._micro_batch)
        self._forwarded.append(rows)
        for row in rows.elements():
            for left in self._left:
                if left[row] > 0:
                    left[row] -= 1
                    break
        self._seen = self._ends_of_windows[window] - self._rest.total()
