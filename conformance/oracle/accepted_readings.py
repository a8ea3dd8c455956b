"""Problems with more than one right answer: short windows, uneven last batches, when to average, skipped steps."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.clipping import clipped
from conformance.oracle.deviation import Deviation, deviating
from conformance.oracle.faults import MeanOfMicroBatchMeans, mean_of_means
from conformance.oracle.gradient import as_cast, enclosed, gradient
from conformance.oracle.optimizers import AdamWRule, AdamWRuleOfTensors, SGDRule
from conformance.oracle.recurrence import Recurrence, ScalerHistory
from conformance.oracle.rounding import Ledger, odd_part
from conformance.workloads.behaviour import Way
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, AdamW, Sample, Vector


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


class BatchesAlike(Recurrence):
    """The means of the stream's batches are averaged, the smaller last one's too.

    So it is when whole batches are dealt to the ranks by turns, and one rank gets the smaller one.
    """

    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), _batches(window, self.problem.layout.micro_batch_size))


def _batches(window: Window, size: int) -> list[range]:
    """The samples of each batch of the stream in a window."""
    return [range(start, min(start + size, len(window.batch))) for start in range(0, len(window.batch), size)]


class CountsJoinedRanks(Recurrence):
    """Ranks that have run out of data count in the average as if they had gradients of zero."""

    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(window.with_data, window.world_size)


class AdvancesOnSkips(Recurrence):
    """The schedule counts windows, those included whose step a loss scaler skipped."""

    def learning_rate(self, step: int) -> Fraction:
        skips = self.history.skips if self.history else frozenset[int]()
        stepped = [window for window in range(self.problem.workload.steps) if window not in skips]
        return super().learning_rate(stepped[step] if step < len(stepped) else step)


class ClipsAtTheNorm(Recurrence):
    """Nothing is added to the norm that gradients are clipped by, as in Keras and Optax.

    torch adds 1e-6. That is less than what fp32 rounds in most runs, and more than all that fp64 does.
    """

    def clip(self, vector: Affine) -> Affine:
        clip = self.problem.workload.clip
        assert clip is not None
        return clipped(vector, clip, self.problem.precision.master, self.ledger, guard=Fraction(0))


class ScalarsInTensors(Recurrence):
    """The scalars of an optimizer's step are tensors, so they have 24 bits instead of 53.

    torch computes AdamW's bias corrections so where the step is compiled.
    """

    def rule(self, spec: SGD | AdamW) -> SGDRule | AdamWRule:
        if isinstance(spec, AdamW):
            return AdamWRuleOfTensors(spec, self.problem.precision.master, self.ledger)
        return super().rule(spec)


AVERAGES_EARLY = Deviation("averages over the ranks in every micro-batch", AveragedInEveryMicroBatch)
MICRO_BATCHES_ALIKE = Deviation("counts an uneven micro-batch as much as the others", MeanOfMicroBatchMeans)
BATCHES_ALIKE = Deviation("counts a batch that is smaller on one rank as much as the others", BatchesAlike)
COUNTS_JOINED_RANKS = Deviation("divides by all ranks when some have run out of data", CountsJoinedRanks)
ADVANCES_ON_SKIPS = Deviation("advances the schedule when a step is skipped", AdvancesOnSkips)
CLIPS_AT_THE_NORM = Deviation("adds nothing to the norm that it clips by", ClipsAtTheNorm)
SCALARS_IN_TENSORS = Deviation("computes the scalars of a step as tensors", ScalarsInTensors)

Deviations = tuple[Deviation, ...]
_Choice = list[tuple[tuple[Way, ...], Problem]]
_Deviating = list[tuple[tuple[Way, ...], Deviations]]
_BY_MICRO_BATCHES: tuple[Way, ...] = ("uneven_window=by micro-batches",)


@dataclass(frozen=True)
class Reading:
    """One accepted reading of a problem: the ``ways`` in which it reads what is open, and its deviations."""

    ways: tuple[Way, ...]
    problem: Problem
    deviations: Deviations = ()

    @property
    def averages_early(self) -> bool:
        """Whether it applies to ranks whose trace shows an average before the last micro-batch of a window."""
        return AVERAGES_EARLY in self.deviations

    def recurrence(self, history: ScalerHistory | None = None, *further: Deviation) -> Recurrence:
        """The right answer by this reading, or one with ``further`` deviations."""
        return deviating((*further, *self.deviations))(self.problem, history)


def readings(
    problem: Problem, padded: Sequence[tuple[Sample, ...]] = (), skips: Set[int] = frozenset()
) -> tuple[Reading, ...]:
    """The accepted readings, the strictest first: all combinations of the decisions that a trainer may make.

    Args:
        padded: what the samples of the last window may be, if ranks filled it up by repeating some.
        skips: the windows that a loss scaler skipped.
    """
    return tuple(
        Reading(
            (*joined, *dividing, *small, *short, *uneven, *often, *skipping),
            read,
            (*over, *counting, *averaging, *scheduling, *clipping),
        )
        for joined, going_on in _of_ranks_without_data(problem, padded)
        for dividing, over in _of_their_share(going_on)
        for small, trained in _of_a_small_batch(going_on, padded)
        for short, read in _of_a_short_window(trained, padded)
        for uneven, counting in _of_an_uneven_window(read, is_padded=bool(padded))
        for often, averaging in _of_averaging(read)
        for skipping, scheduling in _of_a_skipped_step(read, skips)
        for clipping in _of_the_norm(read)
    )


def fewest_steps(problem: Problem) -> int:
    """The steps of a trainer that drops what it may."""
    return min(reading.problem.workload.steps for reading in readings(problem))


def _of_ranks_without_data(problem: Problem, padded: Sequence[tuple[Sample, ...]]) -> _Choice:
    """The readings of a last window in which only some ranks have data: these go on, all do with data that are
    repeated, or none does."""
    if _all_have_data(problem):
        return [((), problem)]
    whole = [samples for samples in padded if len(samples) == problem.workload.batch_size]
    filled: _Choice = [(("last_batch=pad",), _ending(problem, samples)) for samples in whole]
    return [(("last_batch=join",), problem), *filled, (("last_batch=drop",), _ending(problem, ()))]


def _of_their_share(problem: Problem) -> _Deviating:
    """Ranks without data may count in the average, or not: torch's Join does either, as it is told."""
    if _all_have_data(problem):
        return [((), ())]
    return [(("joined_ranks=left out",), ()), (("joined_ranks=counted",), (COUNTS_JOINED_RANKS,))]


def _all_have_data(problem: Problem) -> bool:
    last = problem.windows[-1]
    return last.with_data == last.world_size


def _of_a_small_batch(problem: Problem, padded: Sequence[tuple[Sample, ...]]) -> _Choice:
    """The readings of a last micro-batch that is smaller: trained on, filled up as the ranks did it, or dropped."""
    last, size = problem.windows[-1], problem.layout.micro_batch_size
    full = sorted(
        index for share in last.shares for micro_batch in share if len(micro_batch) == size for index in micro_batch
    )
    if len(full) == len(last.batch):
        return [((), problem)]
    filled: _Choice = [(("last_batch=pad",), _ending(problem, samples)) for samples in padded]
    dropped = _ending(problem, tuple(last.batch[index] for index in full))
    return [(("last_batch=use",), problem), *filled, (("last_batch=drop",), dropped)]


def _ending(problem: Problem, last: tuple[Sample, ...]) -> Problem:
    """The problem with another last batch; without any, if it is empty."""
    batches = (*problem.workload.batches[:-1], *([last] if last else []))
    return replace(problem, workload=replace(problem.workload, batches=batches))


def _of_a_short_window(problem: Problem, padded: Sequence[tuple[Sample, ...]]) -> _Choice:
    """The readings of a short window: averaged by its true length, filled up as the ranks did it, or dropped."""
    last = problem.windows[-1]
    if last.length == last.nominal:
        return [((), problem)]
    filled: _Choice = [(("last_window=pad",), _ending(problem, samples)) for samples in padded]
    return [(("last_window=step",), problem), *filled, (("last_window=drop",), _ending(problem, ()))]


def _of_an_uneven_window(problem: Problem, *, is_padded: bool) -> _Deviating:
    """A smaller last micro-batch may count by its samples, or as much as the others as in PyTorch's own loops.

    Not with a weighted loss, which defines what each sample counts: there a mean of means is a catalogued fault. Nor if
    it was filled up: the samples that were repeated then make the same numbers.
    """
    last, size = problem.windows[-1], problem.layout.micro_batch_size
    if problem.workload.loss == "weighted":
        return [((), ())]
    by_samples: tuple[Way, ...] = ()
    if len({len(micro_batch) for share in last.shares for micro_batch in share}) > 1:
        by_samples, alike = ("uneven_window=by samples",), MICRO_BATCHES_ALIKE
    elif len(last.batch) % size and len(_batches(last, size)) == last.world_size * last.length > 1:
        # Only a trainer that deals the batches itself has an uneven window.
        alike = BATCHES_ALIKE
    else:
        return [((), ())]
    return [(by_samples, ()), *([] if is_padded else [(_BY_MICRO_BATCHES, (alike,))])]


def _of_averaging(problem: Problem) -> _Deviating:
    """Ranks may average in every micro-batch; with a power of two of them that is the same to the bit."""
    if odd_part(problem.layout.world_size) == 1 or problem.layout.accumulation == 1:
        return [((), ())]
    return [((), ()), (("averaging=in every micro-batch",), (AVERAGES_EARLY,))]


def _of_a_skipped_step(problem: Problem, skips: Set[int]) -> _Deviating:
    """After a skipped step the schedule may be that of the steps that were taken, or of the windows."""
    schedule = problem.workload.schedule
    stepped = [window for window in range(problem.workload.steps) if window not in skips]
    if schedule is None or all(schedule[step] == schedule[window] for step, window in enumerate(stepped)):
        return [((), ())]
    return [(("schedule_on_skip=wait",), ()), (("schedule_on_skip=advance",), (ADVANCES_ON_SKIPS,))]


def _of_the_norm(problem: Problem) -> tuple[Deviations, ...]:
    """Clipping by norm may add something to it, or nothing."""
    clip = problem.workload.clip
    return ((), (CLIPS_AT_THE_NORM,)) if clip is not None and clip.kind == "norm" else ((),)
