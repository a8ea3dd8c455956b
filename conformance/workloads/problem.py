"""What a case asks of a trainer: what is trained, how it is split, and in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from conformance.workloads.layout import Layout, Window
from conformance.workloads.precision import Precision
from conformance.workloads.workload import Vector, Workload


@dataclass(frozen=True)
class Problem:
    """A workload in a layout and a precision. ``resumed_at``: after how many windows it is stopped and resumed."""

    workload: Workload
    layout: Layout
    precision: Precision
    resumed_at: int | None = None

    def __hash__(self) -> int:
        """The hash of the names only: all the fractions take long to hash, and equality compares them anyway."""
        return hash((self.workload.name, self.layout, self.precision.name))

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """All accumulation windows of a run."""
        return self.layout.windows(self.workload)

    def total_weight(self, window: Window) -> Fraction:
        """The divisor of the correct gradient: the samples, or their weight, of all ranks and micro-batches."""
        if self.workload.loss == "mean":
            return Fraction(len(window.batch))
        return sum((sample.weight for sample in window.batch), Fraction(0))

    def coefficients(self, window: Window) -> Vector:
        """The factor of each sample's squared error in the right loss; they sum to one."""
        if self.workload.loss == "mean":
            return _evenly(len(window.batch))
        total = self.total_weight(window)
        return tuple(sample.weight / total for sample in window.batch)


@lru_cache(maxsize=64)
def _evenly(samples: int) -> Vector:
    return (Fraction(1, samples),) * samples
