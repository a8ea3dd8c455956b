"""Where in its plan a rank is: which window and micro-batch the rows that it forwards are of."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

Rows: TypeAlias = Sequence[int | None]
MicroBatches: TypeAlias = Sequence[Sequence[int]]


class Position:
    """Follows windows of micro-batches of rows, all of whose forwards are of further micro-batches.

    window, micro_batch: those of the last rows; None before the first. The latter may be set to that of rows which were
    forwarded once more.

    Rows belong to the window that they complete; when all rows of a window were forwarded, to the next one that has
    them. Rows of a later window mean that samples were dropped. Several micro-batches at once count as the first of
    them.

    A trainer may deal the samples to the ranks in its own way. From the first rows on that no window here has, rows are
    only counted against the sizes that were planned.
    """

    def __init__(self, windows: Sequence[MicroBatches]) -> None:
        self.window: int | None = None
        self.micro_batch: int | None = None
        self._windows = windows
        self._left: list[Counter[int]] = []
        self._forwarded: list[Counter[int]] = []
        self._positions = [(n, m) for n, window in enumerate(windows) for m in range(len(window))]
        self._ends = list(accumulate(len(micro_batch) for window in windows for micro_batch in window))
        self._seen = 0
        self._is_as_planned = True
        self._is_counting = False

    def advance(self, rows: Rows) -> None:
        """To the micro-batch of these rows; None for a row that is no sample, [] when they are unknown."""
        if self._is_as_planned:
            if self._follow(rows):
                return
            self._leave_plan()
        known = [row for row in rows if row is not None]
        number = None if self._is_counting or not known else self._window_of(Counter(known))
        if number is None:
            self._is_counting = True
            self._count(len(rows))
        else:
            self._consume(known, number)

    def has_next(self, rows: Rows) -> bool:
        """Whether the window has these rows once more."""
        position = bisect_right(self._ends, self._seen)
        if self._is_as_planned or self._is_counting:
            return (
                position < len(self._positions)
                and self._positions[position][0] == self.window
                and (self._is_counting or list(rows) == list(self._micro_batch_at(position)))
            )
        return Counter(rows) <= sum(self._left, Counter[int | None]())

    def _micro_batch_at(self, position: int) -> Sequence[int]:
        number, micro_batch = self._positions[position]
        return self._windows[number][micro_batch]

    def _follow(self, rows: Rows) -> bool:
        """Whether these are the rows that the plan has next. Nearly all are: this has to be quick."""
        position = bisect_right(self._ends, self._seen)
        if position == len(self._positions):
            return False
        number, micro_batch = self._positions[position]
        if list(rows) != list(self._micro_batch_at(position)):
            return False
        self.window, self.micro_batch = number, micro_batch
        self._seen = self._ends[position]
        return True

    def _leave_plan(self) -> None:
        self._is_as_planned = False
        if self.window is not None:
            window = [Counter(micro_batch) for micro_batch in self._windows[self.window]]
            ends = [end for (number, _), end in zip(self._positions, self._ends, strict=True) if number == self.window]
            count = bisect_right(ends, self._seen)
            self._forwarded = window[:count]
            self._left = [Counter[int]() for _ in self._forwarded] + window[count:]

    def _count(self, size: int) -> None:
        position = bisect_right(self._ends, self._seen)
        self.window, self.micro_batch = (*self._positions, (len(self._windows), 0))[min(position, len(self._positions))]
        begin, end = (0, *self._ends)[min(position, len(self._ends) - 1) :][:2]
        self._seen += size or end - begin

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
        self._seen = self._ends[self._positions.index((number, 0))] - len(self._windows[number][0])
        self._seen += sum(map(len, self._windows[number])) - sum(counter.total() for counter in self._left)

    def _window_of(self, rows: Counter[int]) -> int | None:
        """The window that has all these rows; None if no such window is near."""
        if self.window is None:
            return next((n for n in range(len(self._windows)) if self._has(n, rows)), None)
        left = sum(self._left, Counter[int]())
        if rows <= left or (left and rows in self._forwarded):
            return self.window
        later = next((n for n in range(self.window + 1, len(self._windows)) if self._has(n, rows)), None)
        is_back = later is None and any(self._has(n, rows) for n in range(self.window + 1))
        return self.window if is_back else later

    def _has(self, number: int, rows: Counter[int]) -> bool:
        return rows <= Counter(row for micro_batch in self._windows[number] for row in micro_batch)

    def _micro_batch_of(self, rows: Sequence[int]) -> int | None:
        for row in rows:
            for number, left in enumerate(self._left):
                if left[row] > 0:
                    return number
        return next((n for n, rest in enumerate(self._left) if any(row in rest for row in rows)), self.micro_batch)
