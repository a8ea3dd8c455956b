"""Where more than one answer is right: what a trainer may do with a short window or an uneven last micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.gradient import as_cast, enclosed, gradient
from conformance.oracle.recurrence import Recurrence
from conformance.oracle.rounding import Ledger, odd_part
from conformance.workloads.layout import Layout, Window
from conformance.workloads.workload import Vector, Workload


@dataclass(frozen=True)
class Interpretation:
    """An accepted reading: the workload as it is read, and its recurrence; ``name`` is None if it is the only one.

    ``averaged_early``: it is for ranks that were seen to average before the last micro-batch of a window.
    """

    name: str | None
    recurrence: type[Recurrence]
    workload: Workload
    averaged_early: bool = False


class MeanOfMicroBatchMeans(Recurrence):
    """Every micro-batch of a window weighs the same, however many samples it has."""

    def coefficients(self, window: Window) -> Vector:
        result = [Fraction(0)] * len(window.batch)
        for share in window.shares:
            for micro_batch in share:
                for index in micro_batch:
                    result[index] = Fraction(1, window.world_size * window.length * len(micro_batch))
        return tuple(result)


class AveragedInEveryMicroBatch(Recurrence):
    """Ranks average after every backward, as DDP does without ``no_sync``.

    Each average divides what was averaged before once more and adds it up again over the ranks. That changes nothing
    but the rounding: with an odd world size a running average is no multiple of it, so exactness cannot be proved.
    """

    def averaged(self, window: Window, weights: Affine, coefficients: Vector, part: int | None = None) -> Affine:
        self.ledger.refuse("all-reduce", self.precision.master, "a running average is divided in every micro-batch")
        form, precision, textbook = self.form(window, coefficients, part), self.precision, Ledger()
        gradient(self.workload, window, form, weights, precision, self.loss_scale, textbook)
        if textbook.exact:
            # Up to the first average nothing rounds; from there on only the master format does.
            weights = as_cast(weights, precision)
            precision = replace(precision, compute=precision.master)
        # An average adds a term up over the ranks and multiplies it with a rounded constant.
        further = window.length * (window.world_size + 1)
        return enclosed(self.workload, window, form, weights, precision, self.loss_scale, further)


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
    if odd_part(layout.world_size) > 1 and layout.accumulation > 1:
        return (
            Interpretation(None, Recurrence, workload),
            Interpretation(
                "ranks average in every micro-batch", AveragedInEveryMicroBatch, workload, averaged_early=True
            ),
        )
    return (Interpretation(None, Recurrence, workload),)
