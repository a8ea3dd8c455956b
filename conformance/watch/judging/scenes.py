"""What the ranks did in one window, kept for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.watch.judging.windows import Window
from conformance.watch.records import Record

Pass: TypeAlias = tuple[int, int]
"""A rank, and the number of one of its backward passes."""


@dataclass(frozen=True)
class Scene:
    """The window `index` of an optimizer, known by the number that it has on the first of these ranks. of: by rank,
    what it did, without gradients. cut: how many earlier calls of the window are left out, for the rank with the most.
    """

    optimizer: int
    index: int
    of: dict[int, list[Record]]
    cut: int

    @classmethod
    def seen(cls, windows: Sequence[Window]) -> Scene:
        first = windows[0]
        of = {window.rank: window.moments for window in windows}
        return cls(first.optimizer, first.index, of, max(window.cut for window in windows))
