"""Which accumulation window and micro-batch a rank is in, as far as its forwards tell."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, TypeAlias

Rows: TypeAlias = Sequence[int | None]
MicroBatches: TypeAlias = Sequence[Sequence[int]]


class Progress:
    """Follows the plan of one rank: windows of micro-batches of rows.

    window, micro_batch: those of the last training forward; None before the first, and without a plan.

    A forward belongs to the window that its rows complete; when all rows of a window have been through, to the
    next one that has its rows. Rows that are through already, in a window that is not complete, are forwarded once
    more; rows of a later window mean that samples were dropped. A forward of several micro-batches counts as the
    first of them.

    Rows may recur in the data. While no backward, nor a step, has used what was forwarded, the same rows once more
    are no further micro-batch; if it turns out that a backward used both, and the window has such rows twice, they
    were two micro-batches that went forward one after the other. And as long as no step has ended a window, rows that
    it has no more are no micro-batch of the next one.

    A trainer may deal the samples to the ranks in its own way. From the first forward on whose rows no window here
    has, rows are only counted against the sizes that were planned.
    """

    def __init__(self, windows: Sequence[MicroBatches] = ()) -> None:
        self.window: int | None = None
        self.micro_batch: int | None = None
        self._windows = windows
        self._left: list[Counter[int]] = []
        self._through: list[Counter[int]] = []
        self._places = [(n, m) for n, window in enumerate(windows) for m in range(len(window))]
        self._ends = list(accumulate(len(micro_batch) for window in windows for micro_batch in window))
        self._seen = 0
        self._is_as_planned = True
        self._is_counting = False
        self._unused: dict[int, tuple[Rows, int | None]] = {}
        self._repeated: list[int] = []
        self._used: set[int] = set()
        self._through_window: dict[tuple[int | None, ...], int | None] = {}
        self._has_stepped = False

    @classmethod
    def of(cls, spec: dict[str, Any] | None, rank: int) -> Progress:
        """The plan in a spec; samples with equal inputs are the same row."""
        if spec is None:
            return cls()
        row = dict[tuple[float, ...], int]()
        rows = [row.setdefault(tuple(x), len(row)) for x in spec["samples"]["x"]]
        micro_batches = [[rows[sample] for sample in indices] for indices in spec["micro_batches"][rank]]
        return cls(list(_windows(micro_batches, spec["accumulation"])) * spec["epochs"])

    def forward(self, rows: Rows, number: int) -> None:
        """A training forward of these rows; None for a row that is no sample, [] when they cannot be told. `number`
        tells it from others."""
        if not self._windows:
            return
        if self._used:
            self._settle()
        first = self._unused_one(rows)
        if first is not None:
            self.micro_batch = self._unused[first][1]
            self._repeated.append(number)
        elif self._is_once_more(rows):
            self.micro_batch = self._through_window[tuple(rows)]
        else:
            window = self.window
            self._advance(rows)
            if self.window != window:
                self._unused.clear()
                self._repeated.clear()
                self._through_window.clear()
                self._has_stepped = False
            self._through_window[tuple(rows)] = self.micro_batch
        self._unused[number] = (rows, self.micro_batch)

    def used(self, forward: int) -> None:
        """A backward, or `torch.autograd.grad`, goes through the forward with this number."""
        self._used.add(forward)

    def stepped(self) -> None:
        """An optimizer steps, or is kept from it: on what was forwarded, whichever way its gradients were made."""
        self._has_stepped = True
        if not self._used:
            self._used.update(self._unused)

    def _unused_one(self, rows: Rows) -> int | None:
        """A forward of the same rows that nothing has used."""
        if not rows or None in rows:
            return None
        return next((number for number, (others, _) in self._unused.items() if list(others) == list(rows)), None)

    def _is_once_more(self, rows: Rows) -> bool:
        """Whether these are rows of a window that no step has ended, which has them no more."""
        return bool(
            rows
            and not self._has_stepped
            and None not in rows
            and tuple(rows) in self._through_window
            and not self._has_next(rows)
        )

    def _settle(self) -> None:
        """What was forwarded has been used, or will not be."""
        for number in self._repeated:
            rows = self._unused[number][0]
            if number in self._used and self._used_before(number) and self._has_next(rows):
                self._advance(rows)
        self._unused.clear()
        self._repeated.clear()
        self._used.clear()

    def _used_before(self, number: int) -> bool:
        """Whether an earlier forward of the same rows was used as well."""
        rows = list(self._unused[number][0])
        return any(one < number and list(self._unused[one][0]) == rows for one in self._used & self._unused.keys())

    def _has_next(self, rows: Rows) -> bool:
        """Whether the window has these rows once more."""
        place = bisect_right(self._ends, self._seen)
        if self._is_as_planned or self._is_counting:
            return (
                place < len(self._places)
                and self._places[place][0] == self.window
                and (self._is_counting or list(rows) == list(self._micro_batch_at(place)))
            )
        return Counter(rows) <= sum(self._left, Counter[int | None]())

    def _micro_batch_at(self, place: int) -> Sequence[int]:
        number, micro_batch = self._places[place]
        return self._windows[number][micro_batch]

    def _advance(self, rows: Rows) -> None:
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

    def _follow(self, rows: Rows) -> bool:
        """Whether these are the rows that the plan has next. Nearly all are: this has to be quick."""
        place = bisect_right(self._ends, self._seen)
        if place == len(self._places):
            return False
        number, micro_batch = self._places[place]
        if list(rows) != list(self._micro_batch_at(place)):
            return False
        self.window, self.micro_batch = number, micro_batch
        self._seen = self._ends[place]
        return True

    def _leave_plan(self) -> None:
        self._is_as_planned = False
        if self.window is not None and self.micro_batch is not None:
            window = [Counter(micro_batch) for micro_batch in self._windows[self.window]]
            self._through = window[: self.micro_batch + 1]
            self._left = [Counter[int]() for _ in self._through] + window[self.micro_batch + 1 :]

    def _count(self, size: int) -> None:
        place = bisect_right(self._ends, self._seen)
        self.window, self.micro_batch = (*self._places, (len(self._windows), 0))[min(place, len(self._places))]
        begin, end = (0, *self._ends)[min(place, len(self._ends) - 1) :][:2]
        self._seen += size or end - begin

    def _consume(self, rows: Sequence[int], number: int) -> None:
        if number != self.window:
            self.window = number
            self._through = []
            self._left = [Counter(micro_batch) for micro_batch in self._windows[number]]
        self.micro_batch = self._micro_batch_of(rows)
        self._through.append(Counter(rows))
        for row in rows:
            left = next((counter for counter in self._left if counter[row] > 0), None)
            if left is not None:
                left[row] -= 1
        self._seen = self._ends[self._places.index((number, 0))] - len(self._windows[number][0])
        self._seen += sum(map(len, self._windows[number])) - sum(counter.total() for counter in self._left)

    def _window_of(self, rows: Counter[int]) -> int | None:
        """The window that has all these rows; None if no such window is near."""
        if self.window is None:
            return next((n for n in range(len(self._windows)) if self._has(n, rows)), None)
        left = sum(self._left, Counter[int]())
        if rows <= left or (left and rows in self._through):
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


def _windows(micro_batches: MicroBatches, length: int) -> Iterator[MicroBatches]:
    rest = iter(micro_batches)
    while window := list(islice(rest, length)):
        yield window
