"""Where in its plan a rank is: which window and micro-batch the rows that it forwards belong to."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

Rows: TypeAlias = tuple[int | None, ...]
"""Of a forward; None for a row that is no sample, () when they are unknown."""
MicroBatches: TypeAlias = Sequence[Sequence[int]]
Place: TypeAlias = tuple[int, int | None]
"""A window, and a micro-batch in it."""


class _Planned(NamedTuple):
    """A micro-batch of the plan."""

    window: int
    micro_batch: int
    rows: Rows


class Position:
    """Follows windows of micro-batches of rows. Every forward that it is given is of a further micro-batch.

    window, micro_batch: those of the last rows; None before the first. ``micro_batch`` may be set back for rows that
    were forwarded again.
    has_stepped: whether an optimizer has stepped in the window, which the caller sets. Rows that come again after that
    are of another window.

    Rows belong to the window that they complete; after all rows of a window, to the next one that has them. Rows of a
    later window mean that samples were dropped. Several micro-batches at once count as the first of them.

    A trainer may deal the samples to the ranks in its own way. From the first rows that no window here has, rows are
    only counted against the planned sizes.
    """

    def __init__(self, windows: Sequence[MicroBatches]) -> None:
        self.window: int | None = None
        self.micro_batch: int | None = None
        self.has_stepped = False
        self._windows = windows
        self._plan = [
            _Planned(number, micro_batch, tuple(rows))
            for number, window in enumerate(windows)
            for micro_batch, rows in enumerate(window)
        ]
        self._ends = list(accumulate(len(planned.rows) for planned in self._plan))
        self._plan.append(_Planned(len(windows), 0, ()))
        self._seen = 0
        self._is_as_planned = True
        self._is_counting = False
        # Of the window, once not as planned: the rows of each micro-batch that are left, and those of each forward.
        self._left: list[Counter[int]] = []
        self._forwarded: list[Counter[int]] = []

    def advance(self, rows: Rows) -> None:
        """Move to the micro-batch of these rows."""
        window = self.window
        self._advance(rows)
        self.has_stepped &= self.window == window

    def _advance(self, rows: Rows) -> None:
        following = self._next
        # Nearly all forwards are as planned: this has to be quick.
        if self._is_as_planned and rows and rows == following.rows:
            self._move_to(following, len(rows))
            return
        if self._is_as_planned:
            self._leave_plan()
        known = [row for row in rows if row is not None]
        number = None if self._is_counting or not known else self._window_of(Counter(known))
        if number is None:
            self._is_counting = True
            self._move_to(following, len(rows or following.rows))
        else:
            self._consume(known, number)

    def has_next(self, rows: Rows) -> bool:
        """Whether the window has these rows once more."""
        if self._is_as_planned or self._is_counting:
            return self._next.window == self.window and (self._is_counting or self._next.rows == rows)
        return Counter(rows) <= sum(self._left, Counter[int | None]())

    @property
    def _next(self) -> _Planned:
        return self._plan[bisect_right(self._ends, self._seen)]

    def _move_to(self, planned: _Planned, size: int) -> None:
        self.window, self.micro_batch = planned.window, planned.micro_batch
        self._seen += size

    def _leave_plan(self) -> None:
        self._is_as_planned = False
        window = [] if self.window is None else [Counter(micro_batch) for micro_batch in self._windows[self.window]]
        done = self._plan[: bisect_right(self._ends, self._seen)]
        self._forwarded = window[: sum(planned.window == self.window for planned in done)]
        self._left = [Counter[int]() for _ in self._forwarded] + window[len(self._forwarded) :]

    def _consume(self, rows: Sequence[int], number: int) -> None:
        if number != self.window:
            self.window = number
            self._forwarded = []
            self._left = [Counter(micro_batch) for micro_batch in self._windows[number]]
        self.micro_batch = self._micro_batch_of(rows)
        self._forwarded.append(Counter(rows))
        for row in rows:
            left = next((counter for counter in self._left if counter[row] > 0), None)
            if left is not None:
                left[row] -= 1
        planned = sum(len(planned.rows) for planned in self._plan if planned.window <= number)
        self._seen = planned - sum(counter.total() for counter in self._left)

    def _window_of(self, rows: Counter[int]) -> int | None:
        """The window that has all these rows; None if no such window is near."""
        left = sum(self._left, Counter[int]())
        if rows <= left or (left and rows in self._forwarded and not self.has_stepped):
            return self.window
        found = [n for n, window in enumerate(self._windows) if rows <= Counter(chain(*window))]
        later = (n for n in found if self.window is None or n > self.window)
        return next(later, self.window if found else None)

    def _micro_batch_of(self, rows: Sequence[int]) -> int | None:
        """The first micro-batch that has one of the rows left; else the first that had one."""
        left = (n for row in rows for n, left in enumerate(self._left) if left[row] > 0)
        had = (n for n, left in enumerate(self._left) if any(row in left for row in rows))
        return next(chain(left, had), self.micro_batch)
