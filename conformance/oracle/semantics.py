"""Where more than one answer is right: what a trainer may do with a short window or an uneven last micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Layout, Window
from conformance.workloads.workload import Vector, Workload


@dataclass(frozen=True)
class Interpretation:
    """An accepted reading: the workload as it is read, and its recurrence; ``name`` is None if it is the only one."""

    name: str | None
    recurrence: type[Recurrence]
    workload: Workload


class MeanOfMicroBatchMeans(Recurrence):
    """Every micro-batch of a window weighs the same, however many samples it has."""

    def coefficients(self, window: Window) -> Vector:
        result = [Fraction(0)] * len(window.batch)
        for share in window.shares:
            for micro_batch in share:
                for index in micro_batch:
                    result[index] = Fraction(1, window.world_size * window.length * len(micro_batch))
        return tuple(result)


def interpretations(workload: Workload, layout: Layout) -> tuple[Interpretation, ...]:
    """The accepted readings, the strictest first.

    A short last window may be averaged by its true length or dropped. An uneven last micro-batch may count by its
    samples or as much as the others; PyTorch's loops do the latter unless they say otherwise.
    """
    last = layout.windows(workload)[-1]
    if last.length < last.nominal:
        without = replace(workload, batches=workload.batches[:-1])
        return (
            Interpretation("the short last window is averaged by its true length", Recurrence, workload),
            Interpretation("the short last window is dropped", Recurrence, without),
        )
    if len({len(micro_batch) for share in last.shares for micro_batch in share}) > 1:
        return (
            Interpretation("every sample weighs the same in an uneven window", Recurrence, workload),
            Interpretation("every micro-batch weighs the same in an uneven window", MeanOfMicroBatchMeans, workload),
        )
    return (Interpretation(None, Recurrence, workload),)
