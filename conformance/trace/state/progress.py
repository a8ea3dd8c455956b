"""Which accumulation window and micro-batch a rank is in, as far as its forwards show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.trace.state.position import MicroBatches, Position, Rows


@dataclass
class _Forward:
    """A forward that nothing had used when the last one came. ``is_repeated``: an earlier one had the same rows."""

    rows: Rows
    micro_batch: int | None
    is_repeated: bool
    is_used: bool = False


class Progress:
    """Follows the plan of one rank: windows of micro-batches of rows.

    window, micro_batch: those of the last training forward; None before the first, and without a plan.

    The same rows again in an incomplete window may be the same micro-batch going forward again, or equal rows of
    another one. While no backward and no step has used the earlier forward, they count as the same micro-batch. If a
    backward then uses both, and the window has these rows twice, they were two micro-batches. And until a step has
    ended a window, rows that it has no more of do not begin the next one.
    """

    def __init__(self, windows: Sequence[MicroBatches] = ()) -> None:
        self._is_planned = bool(windows)
        self._position = Position(windows)
        # By number: the forwards since the last use of any.
        self._forwards: dict[int, _Forward] = {}
        self._is_any_used = False
        # Of the window: the micro-batch that rows were taken for, and whether an optimizer has stepped.
        self._taken_for: dict[Rows, int | None] = {}
        self._has_stepped = False

    @classmethod
    def of(cls, spec: dict[str, Any] | None, rank: int) -> Progress:
        """The plan in a spec; samples with equal inputs are the same row."""
        if spec is None:
            return cls()
        row = dict[tuple[float, ...], int]()
        rows = [row.setdefault(tuple(x), len(row)) for x in spec["samples"]["x"]]
        epoch = [[rows[sample] for sample in samples] for samples in spec["micro_batches"][rank]]
        length = spec["accumulation"]
        return cls([epoch[start : start + length] for start in range(0, len(epoch), length)] * spec["epochs"])

    @property
    def window(self) -> int | None:
        return self._position.window

    @property
    def micro_batch(self) -> int | None:
        return self._position.micro_batch

    def forward(self, given: Sequence[int | None], number: int) -> None:
        """A training forward of these rows; None for a row that is no sample, [] when they are unknown. `number` is
        that of the forward."""
        if not self._is_planned:
            return
        if self._is_any_used:
            self._settle()
        rows = tuple(given)
        is_known = bool(rows) and None not in rows
        unused = (forward for forward in self._forwards.values() if is_known and forward.rows == rows)
        first = next(unused, None)
        if first is not None:
            self._position.micro_batch = first.micro_batch
        elif not self._has_stepped and rows in self._taken_for and not self._position.has_next(rows):
            self._position.micro_batch = self._taken_for[rows]
        else:
            window = self.window
            self._position.advance(rows)
            if self.window != window:
                self._forwards.clear()
                self._taken_for.clear()
                self._has_stepped = False
            if is_known:
                self._taken_for[rows] = self.micro_batch
        self._forwards[number] = _Forward(rows, self.micro_batch, is_repeated=first is not None)

    def used(self, number: int) -> None:
        """A backward, or `torch.autograd.grad`, reaches the forward with this number."""
        self._is_any_used = True
        if number in self._forwards:
            self._forwards[number].is_used = True

    def stepped(self) -> None:
        """An optimizer takes or skips a step: on what was forwarded, however its gradients were made."""
        self._has_stepped = True
        if not self._is_any_used:
            for number in self._forwards:
                self.used(number)

    def _settle(self) -> None:
        """What was forwarded has been used, or will not be."""
        used = set()
        for forward in self._forwards.values():
            if forward.is_used:
                if forward.is_repeated and forward.rows in used and self._position.has_next(forward.rows):
                    self._position.advance(forward.rows)
                used.add(forward.rows)
        self._forwards.clear()
        self._is_any_used = False
