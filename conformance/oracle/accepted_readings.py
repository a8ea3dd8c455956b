"""Problems with more than one right answer: short windows, uneven last micro-batches, and when to average."""

from __future__ import annotations

from dataclasses import dataclass, replace

from conformance.oracle.affine import Affine
from conformance.oracle.deviation import Deviation, deviating
from conformance.oracle.faults import MeanOfMicroBatchMeans
from conformance.oracle.gradient import as_cast, enclosed, gradient
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.oracle.rounding import Ledger, odd_part
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


class AveragedInEveryMicroBatch(Recurrence):
    """Ranks average after every backward, as DDP does without ``no_sync``.

    Each average divides and sums up the earlier averages again. That changes only the rounding: with an odd world size
    a running average is not a multiple of it, so exactness cannot be proved.
    """

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        problem, textbook = self.problem, Ledger()
        master = problem.precision.master
        self.ledger.refuse("all-reduce", master, "a running average is divided in every micro-batch")
        form = self.form(window, coefficients)
        gradient(problem, window, form, weights, self.loss_scale, textbook)
        if textbook.exact:
            # Before the first average nothing rounds; after it, only operations in the master format do.
            weights = as_cast(weights, problem.precision)
            problem = replace(problem, precision=replace(problem.precision, compute=master))
        # An average sums over the ranks and multiplies with a rounded constant.
        further = window.length * (window.world_size + 1)
        return enclosed(problem, window, form, weights, self.loss_scale, further)


AVERAGES_EARLY = Deviation("averages over the ranks in every micro-batch", AveragedInEveryMicroBatch)
MICRO_BATCHES_ALIKE = Deviation("counts an uneven micro-batch as much as the others", MeanOfMicroBatchMeans)

Deviations = tuple[Deviation, ...]


@dataclass(frozen=True)
class Reading:
    """One accepted reading of a problem, and its deviations. ``name`` is None if it is the only one."""

    name: str | None
    problem: Problem
    deviations: Deviations = ()

    @property
    def averages_early(self) -> bool:
        """Whether it applies to ranks whose trace shows an average before the last micro-batch of a window."""
        return AVERAGES_EARLY in self.deviations

    def recurrence(self, history: ScalerHistory | None = None, *further: Deviation) -> Recurrence:
        """The right answer by this reading, or one with ``further`` deviations."""
        return deviating((*further, *self.deviations))(self.problem, history)


def readings(problem: Problem) -> tuple[Reading, ...]:
    """The accepted readings, the strictest first: all combinations of the decisions that a trainer may make."""
    return tuple(
        Reading("; ".join(name for name in (short, uneven, often) if name) or None, read, (*counting, *averaging))
        for short, read in _of_a_short_window(problem)
        for uneven, counting in _of_an_uneven_window(read)
        for often, averaging in _of_averaging(read)
    )


def _of_a_short_window(problem: Problem) -> list[tuple[str | None, Problem]]:
    """The readings of a short window: averaged by its true length, or dropped."""
    last, workload = problem.windows[-1], problem.workload
    if last.length == last.nominal:
        return [(None, problem)]
    without = replace(problem, workload=replace(workload, batches=workload.batches[:-1]))
    return [
        ("the short last window is averaged by its true length", problem),
        ("the short last window is dropped", without),
    ]


def _of_an_uneven_window(problem: Problem) -> list[tuple[str | None, Deviations]]:
    """A smaller last micro-batch may count by its samples, or as much as the others as in PyTorch's own loops.

    Not with a weighted loss, which defines what each sample counts: there a mean of means is a catalogued fault.
    """
    sizes = {len(micro_batch) for share in problem.windows[-1].shares for micro_batch in share}
    if len(sizes) == 1 or problem.workload.loss == "weighted":
        return [(None, ())]
    return [
        ("every sample weighs the same in an uneven window", ()),
        ("every micro-batch weighs the same in an uneven window", (MICRO_BATCHES_ALIKE,)),
    ]


def _of_averaging(problem: Problem) -> list[tuple[str | None, Deviations]]:
    """Ranks may average in every micro-batch; with a power of two of them that is the same to the bit."""
    if odd_part(problem.layout.world_size) == 1 or problem.layout.accumulation == 1:
        return [(None, ())]
    return [(None, ()), ("ranks average in every micro-batch", (AVERAGES_EARLY,))]
