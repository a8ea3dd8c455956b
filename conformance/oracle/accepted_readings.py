"""Problems with more than one right answer: short windows, uneven last batches, when to average, skipped steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.clipping import clipped
from conformance.oracle.deviation import Deviation, deviating
from conformance.oracle.faults import MeanOfMicroBatchMeans, mean_of_means
from conformance.oracle.gradient import as_cast, enclosed, gradient
from conformance.oracle.optimizers import AdamWRuleOfTensors, Rule
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

    def place(self, step: int) -> int:
        skips = self.history.skips if self.history else frozenset[int]()
        stepped = [window for window in range(self.problem.workload.steps) if window not in skips]
        return super().place(stepped[step] if step < len(stepped) else step)


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

    def rule(self, spec: SGD | AdamW) -> Rule:
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


@dataclass(frozen=True)
class Reading:
    """One accepted reading of a problem: the ``ways`` in which it reads what is open, and its deviations."""

    ways: tuple[Way, ...]
    problem: Problem
    deviations: tuple[Deviation, ...] = ()

    @property
    def averages_early(self) -> bool:
        """Whether it applies to ranks whose trace shows an average before the last micro-batch of a window."""
        return AVERAGES_EARLY in self.deviations

    def recurrence(self, history: ScalerHistory | None = None, *further: Deviation) -> Recurrence:
        """The right answer by this reading, or one with ``further`` deviations."""
        return deviating((*further, *self.deviations))(self.problem, history)

    def by(self, way: Way | None, *deviations: Deviation) -> Reading:
        """This reading with one more decision; ``way``: what to call it."""
        ways = (*self.ways, way) if way else self.ways
        return replace(self, ways=ways, deviations=(*self.deviations, *deviations))

    def ending(self, way: Way, last: tuple[Sample, ...] = ()) -> Reading:
        """This reading with another last batch; without one, if it is empty."""
        workload = self.problem.workload
        batches = (*workload.batches[:-1], *([last] if last else []))
        return replace(self.by(way), problem=replace(self.problem, workload=replace(workload, batches=batches)))


def readings(
    problem: Problem, padded: Sequence[tuple[Sample, ...]] = (), skips: Set[int] = frozenset()
) -> tuple[Reading, ...]:
    """The accepted readings, the strictest first: all combinations of the decisions that a trainer may make.

    Args:
        padded: what the samples of the last window may be, if ranks filled it up by repeating some.
        skips: the windows that a loss scaler skipped.
    """
    decisions: tuple[Callable[[Reading], Iterator[Reading]], ...] = (
        lambda reading: _of_ranks_without_data(reading, padded),
        lambda reading: _of_a_small_batch(reading, padded),
        lambda reading: _of_a_short_window(reading, padded),
        lambda reading: _of_an_uneven_window(reading, is_padded=bool(padded)),
        _of_averaging,
        lambda reading: _of_a_skipped_step(reading, skips),
        _of_the_norm,
    )
    found = [Reading((), problem)]
    for decision in decisions:
        found = [more for reading in found for more in decision(reading)]
    return tuple(found)


def fewest_steps(problem: Problem) -> int:
    """The steps of a trainer that drops what it may."""
    return min(reading.problem.workload.steps for reading in readings(problem))


def _of_ranks_without_data(reading: Reading, padded: Sequence[tuple[Sample, ...]]) -> Iterator[Reading]:
    """The readings of a last window in which only some ranks have data: these go on, all do with data that are
    repeated, or none does. Ranks without data may count in the average, or not: torch's Join does either, as it is
    told."""
    last = reading.problem.windows[-1]
    if last.with_data == last.world_size:
        yield reading
        return
    joined = reading.by("last_batch=join")
    yield joined.by("joined_ranks=left out")
    yield joined.by("joined_ranks=counted", COUNTS_JOINED_RANKS)
    for samples in padded:
        if len(samples) == reading.problem.workload.batch_size:
            yield reading.ending("last_batch=pad", samples)
    yield reading.ending("last_batch=drop")


def _of_a_small_batch(reading: Reading, padded: Sequence[tuple[Sample, ...]]) -> Iterator[Reading]:
    """The readings of a last micro-batch that is smaller: trained on, filled up as the ranks did it, or dropped."""
    last, size = reading.problem.windows[-1], reading.problem.layout.micro_batch_size
    full = sorted(
        index for share in last.shares for micro_batch in share if len(micro_batch) == size for index in micro_batch
    )
    if len(full) == len(last.batch):
        yield reading
        return
    yield reading.by("last_batch=use")
    for samples in padded:
        yield reading.ending("last_batch=pad", samples)
    yield reading.ending("last_batch=drop", tuple(last.batch[index] for index in full))


def _of_a_short_window(reading: Reading, padded: Sequence[tuple[Sample, ...]]) -> Iterator[Reading]:
    """The readings of a short window: averaged by its true length, filled up as the ranks did it, or dropped."""
    last = reading.problem.windows[-1]
    if last.length == last.nominal:
        yield reading
        return
    yield reading.by("last_window=step")
    for samples in padded:
        yield reading.ending("last_window=pad", samples)
    yield reading.ending("last_window=drop")


def _of_an_uneven_window(reading: Reading, *, is_padded: bool) -> Iterator[Reading]:
    """A smaller last micro-batch may count by its samples, or as much as the others as in PyTorch's own loops.

    Not with a weighted loss, which defines what each sample counts: there a mean of means is a catalogued fault. Nor if
    it was filled up: the samples that were repeated then make the same numbers.
    """
    last, size = reading.problem.windows[-1], reading.problem.layout.micro_batch_size
    by_samples: Way | None = None
    alike: Deviation | None = None
    if reading.problem.workload.loss != "weighted":
        if len({len(micro_batch) for share in last.shares for micro_batch in share}) > 1:
            by_samples, alike = "uneven_window=by samples", MICRO_BATCHES_ALIKE
        elif len(last.batch) % size and len(_batches(last, size)) == last.world_size * last.length > 1:
            # Only a trainer that deals the batches itself has an uneven window.
            alike = BATCHES_ALIKE
    yield reading.by(by_samples)
    if alike is not None and not is_padded:
        yield reading.by("uneven_window=by micro-batches", alike)


def _of_averaging(reading: Reading) -> Iterator[Reading]:
    """Ranks may average in every micro-batch; with a power of two of them that is the same to the bit."""
    yield reading
    if odd_part(reading.problem.layout.world_size) > 1 and reading.problem.layout.accumulation > 1:
        yield reading.by("averaging=in every micro-batch", AVERAGES_EARLY)


def _of_a_skipped_step(reading: Reading, skips: Set[int]) -> Iterator[Reading]:
    """After a skipped step the schedule may be that of the steps that were taken, or of the windows."""
    schedule = reading.problem.workload.schedule
    stepped = [window for window in range(reading.problem.workload.steps) if window not in skips]
    if schedule is None or all(schedule[step] == schedule[window] for step, window in enumerate(stepped)):
        yield reading
        return
    yield reading.by("schedule_on_skip=wait")
    yield reading.by("schedule_on_skip=advance", ADVANCES_ON_SKIPS)


def _of_the_norm(reading: Reading) -> Iterator[Reading]:
    """Clipping by norm may add something to it, or nothing."""
    clip = reading.problem.workload.clip
    yield reading
    if clip is not None and clip.kind == "norm":
        yield reading.by(None, CLIPS_AT_THE_NORM)
