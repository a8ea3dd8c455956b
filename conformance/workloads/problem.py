"""The problem of a case: what is trained, how it is split, and in which precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache

from conformance.workloads.layout import Layout, Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import Vector, Workload


@dataclass(frozen=True)
class Problem:
    """A workload in a layout and a precision. ``resumed_at``: after how many windows it stops and resumes, and
    ``resumed_inside``: after how many micro-batches of the next one. ``resumed_layout``: the layout after that, if it
    differs; global batches stay the same. ``read``: the windows that are read, if they differ from the layout's;
    ``in_order``: they have the layout's orders."""

    workload: Workload
    layout: Layout
    precision: Precision
    resumed_at: int | None = None
    resumed_inside: int = 0
    resumed_layout: Layout | None = None
    read: tuple[Window, ...] | None = None
    in_order: bool = True

    def __hash__(self) -> int:
        """The hash of only the names: the fractions take long to hash, and equality compares them anyway."""
        return hash((self.workload.name, self.layout, self.precision.name))

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """All accumulation windows of a run."""
        if self.resumed_layout is None:
            return self.windows_of_lives[0]
        before, after = self.windows_of_lives
        return (*before[: self.resumed_at], *after[self.resumed_at :])

    @cached_property
    def windows_of_lives(self) -> tuple[tuple[Window, ...], ...]:
        """All windows in each layout, as the processes of each life could run through them; a single life if the layout
        does not change."""
        return tuple(layout.windows(self.workload) for layout in self.layouts) if self.read is None else (self.read,)

    @cached_property
    def ends(self) -> tuple[Window, ...]:
        """The last window of each epoch."""
        return tuple({window.epoch: window for window in self.windows}.values())

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return (self.layout,) if self.resumed_layout is None else (self.layout, self.resumed_layout)

    def reading(self, windows: Sequence[Window]) -> Problem:
        """The problem with only these windows read, or others in their places; the stop stays where it is."""
        stop = self.resumed_at
        before = None if stop is None else sum(window.index < stop for window in windows)
        return replace(self, read=tuple(windows), resumed_at=before)

    def life_of(self, window: int) -> int:
        """The index in `layouts` of a window's layout."""
        return int(self.resumed_layout is not None and window >= (self.resumed_at or 0))

    def layout_of(self, window: Window) -> Layout:
        return self.layouts[self.life_of(window.index)]

    def total_weight(self, window: Window) -> Fraction:
        """The divisor of the correct gradient: the samples, or their weight, of all ranks and micro-batches."""
        if self.workload.loss == "mean":
            return Fraction(len(window.batch))
        return sum((sample.weight for sample in window.batch), Fraction(0))

    def coefficients(self, window: Window) -> Vector:
        """The factor of each sample's squared error in the correct loss; they sum to one."""
        if self.workload.loss == "mean":
            return _evenly(len(window.batch))
        total = self.total_weight(window)
        return tuple(sample.weight / total for sample in window.batch)


@lru_cache(maxsize=64)
def _evenly(samples: int) -> Vector:
    return (Fraction(1, samples),) * samples
