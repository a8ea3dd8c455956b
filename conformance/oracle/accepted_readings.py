"""The accepted readings of problems with several correct answers, such as short windows and uneven last batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, zip_longest
from typing import TypeAlias

from conformance.oracle.affine import Affine
from conformance.oracle.faults.short_windows import AddsTheMeanOfWhatIsLeft, AddsWhatIsLeft, with_carried
from conformance.oracle.faults.weighted import MeanOfMicroBatchMeans, mean_of_means
from conformance.oracle.gradient import as_cast, enclosed, gradient
from conformance.oracle.optimizers import AdamWRuleOfTensors, Rule, clipped
from conformance.oracle.recurrence import Deviation, Recurrence, ScalerHistory, deviating
from conformance.oracle.rounding import Ledger, gamma, odd_part
from conformance.workloads.behaviour import Way
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, AdamW, Optimizer, Vector

#: The last windows of epochs, by their numbers.
Ends: TypeAlias = Mapping[int, Window]


class AveragedInEveryMicroBatch(Recurrence):
    """Ranks average after every backward, as DDP does without ``no_sync``.

    Each average divides and sums the earlier averages again. This changes only the rounding: with an odd world size, a
    running average is not a multiple of it, so exactness cannot be proved.
    """

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        problem, textbook = self.problem, Ledger()
        master = problem.precision.master
        self.ledger.refuse("all-reduce", master, "a running average is divided in every micro-batch")
        form = self.form(window, coefficients)
        gradient(problem, window, form, weights, self.loss_scale, textbook)
        if textbook.exact:
            # Nothing rounds before the first average; after it, only operations in the master format round.
            weights = as_cast(weights, problem.precision)
            problem = replace(problem, precision=replace(problem.precision, compute=master))
        # An average sums over the ranks and multiplies with a rounded constant.
        further = window.length * (window.world_size + 1)
        return enclosed(problem, window, form, weights, self.loss_scale, further)


class BatchesAlike(Recurrence):
    """The trainer averages the means of the stream's batches, including the smaller last one.

    This happens if ranks take whole batches in turn, and one rank gets the smaller one.
    """

    def counted(self, window: Window) -> Vector:
        return mean_of_means(super().counted(window), _batches(window, self.problem.layout_of(window).micro_batch_size))


def _batches(window: Window, size: int) -> list[list[int]]:
    """The samples of each batch of the stream in a window."""
    turns = zip_longest(*window.shares, fillvalue=())
    dealt = list(chain.from_iterable(chain.from_iterable(turns)))
    return [dealt[start : start + size] for start in range(0, len(dealt), size)]


class CountsJoinedRanks(Recurrence):
    """Ranks without data count in the average with zero gradients."""

    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(window.with_data, window.world_size)


class AdvancesOnSkips(Recurrence):
    """The schedule counts windows, including those with a step that a loss scaler skipped."""

    def place(self, step: int) -> int:
        skips = self.history.skips if self.history else frozenset[int]()
        stepped = [place for place, window in enumerate(self.problem.windows) if window.index not in skips]
        return super().place(stepped[step] if step < len(stepped) else step)


class ClipsAtTheNorm(Recurrence):
    """Clipping adds nothing to the norm, as in Keras and Optax.

    torch adds 1e-6, which is less than the rounding of fp32 in most runs, but more than that of fp64.
    """

    def clip(self, vector: Affine) -> Affine:
        clip = self.problem.workload.clip
        assert clip is not None
        return clipped(vector, clip, self.problem.precision.master, self.ledger, guard=Fraction(0))


class MovesUnused(Recurrence):
    """The optimizer steps parameters that no sample of a window uses with zero gradients, so momentum and weight decay
    move them. Parameters without a gradient do not move."""

    def steps_on(self, tensor: int) -> bool:
        return self.trains(tensor, self.window.index)


class ScalarsInTensors(Recurrence):
    """The scalars of an optimizer's step are tensors, so they have 24 bits instead of 53.

    torch computes AdamW's bias corrections in tensors if the step is compiled.
    """

    def rule(self, spec: Optimizer) -> Rule:
        if isinstance(spec, AdamW):
            return AdamWRuleOfTensors(spec, self.problem.precision.master, self.ledger)
        return super().rule(spec)


AVERAGES_EARLY = Deviation("averages over the ranks in every micro-batch", AveragedInEveryMicroBatch)
MICRO_BATCHES_ALIKE = Deviation("counts an uneven micro-batch as much as the others", MeanOfMicroBatchMeans)
BATCHES_ALIKE = Deviation("counts a batch that is smaller on one rank as much as the others", BatchesAlike)
COUNTS_JOINED_RANKS = Deviation("divides by all ranks after some run out of data", CountsJoinedRanks)
CARRIES = Deviation("adds the gradients of a short window to the next one", AddsWhatIsLeft)
CARRIES_A_MEAN = Deviation("adds the mean of a short window to the next one", AddsTheMeanOfWhatIsLeft)
ADVANCES_ON_SKIPS = Deviation("advances the schedule when a step is skipped", AdvancesOnSkips)
CLIPS_AT_THE_NORM = Deviation("adds nothing to the norm for clipping", ClipsAtTheNorm)
MOVES_UNUSED = Deviation("steps parameters that a window does not use with zero gradients", MovesUnused)
SCALARS_IN_TENSORS = Deviation("computes the scalars of a step as tensors", ScalarsInTensors)


@dataclass(frozen=True)
class Reading:
    """One accepted reading of a problem: its choices, ``ways``, and its deviations."""

    ways: tuple[Way, ...]
    problem: Problem
    deviations: tuple[Deviation, ...] = ()

    @property
    def averages_early(self) -> bool:
        """Whether it applies to ranks whose trace shows an average before the last micro-batch of a window."""
        return AVERAGES_EARLY in self.deviations

    def denies(self, declared: Mapping[str, str]) -> bool:
        """Whether it contradicts a ``declared`` choice, by name."""
        return any(declared.get(name, value) != value for name, _, value in (way.partition("=") for way in self.ways))

    def recurrence(self, history: ScalerHistory | None = None, *further: Deviation) -> Recurrence:
        """The correct answer by this reading, or one with ``further`` deviations."""
        return deviating((*further, *self.deviations))(self.problem, history)

    def by(self, way: Way | None, *deviations: Deviation) -> Reading:
        """This reading with one more decision; ``way``: its name."""
        ways = (*self.ways, way) if way else self.ways
        return replace(self, ways=ways, deviations=(*self.deviations, *deviations))

    def ending(self, way: Way, end: Callable[[Window], Window | None]) -> Reading:
        """This reading with another ``end`` of each epoch instead of its last window, or none."""
        ends = {window.index for window in self.problem.ends}
        found = (end(window) if window.index in ends else window for window in self.problem.windows)
        return replace(self.by(way), problem=self.problem.reading([window for window in found if window is not None]))


def readings(
    problem: Problem, padded: Sequence[Ends] = (), skips: Set[int] = frozenset(), *, carries: bool = False
) -> tuple[Reading, ...]:
    """The accepted readings, the strictest first: all combinations of the decisions that a trainer may make. A decision
    that the problem does not leave open gives no reading.

    Args:
        padded: the possible last windows of each epoch, if ranks filled them up by repeating samples.
        skips: the windows that a loss scaler skipped.
        carries: the gradients of a short window may go into the next epoch.
    """
    decisions: tuple[Callable[[Reading], Iterator[Reading]], ...] = (
        lambda reading: _of_ranks_without_data(reading, padded),
        lambda reading: _of_a_small_batch(reading, padded),
        lambda reading: _of_a_short_window(reading, padded, carries),
        _of_repeated_samples,
        lambda reading: _of_an_uneven_window(reading, is_padded=bool(padded)),
        _of_averaging,
        lambda reading: _of_a_skipped_step(reading, skips),
        _of_the_norm,
        _of_unused_parameters,
    )
    found = [Reading((), problem)]
    for decision in decisions:
        found = [more for reading in found for more in [*decision(reading)] or [reading]]
    return tuple(found)


def must_step(problem: Problem) -> frozenset[int]:
    """The windows that every trainer must step, even one that drops all it may."""
    fewest = min((reading.problem.windows for reading in readings(problem)), key=len)
    return frozenset(window.index for window in fewest)


def _of_ranks_without_data(reading: Reading, padded: Sequence[Ends]) -> Iterator[Reading]:
    """Yields the readings of a last window in which only some ranks have data: these continue, all continue with
    repeated data, or none does. Ranks without data may count in the average or not: torch's Join can do either."""
    if all(window.with_data == window.world_size for window in reading.problem.ends):
        return
    joined = reading.by("last_batch=join")
    yield joined.by("joined_ranks=left out")
    yield joined.by("joined_ranks=counted", COUNTS_JOINED_RANKS)
    for ends in padded:
        if all(len(window.batch) == reading.problem.workload.batch_size for window in ends.values()):
            yield reading.ending("last_batch=pad", _replaced_by(ends))
    yield reading.ending("last_batch=drop", lambda window: window if window.with_data == window.world_size else None)


def _replaced_by(ends: Ends) -> Callable[[Window], Window]:
    return lambda window: ends.get(window.index, window)


def _of_a_small_batch(reading: Reading, padded: Sequence[Ends]) -> Iterator[Reading]:
    """Yields the readings of a smaller last micro-batch: trained on, filled up as the ranks did, or dropped."""

    def full(window: Window) -> Window | None:
        return window.of_full(reading.problem.layout_of(window).micro_batch_size)

    if all(full(window) == window for window in reading.problem.ends):
        return
    yield reading.by("last_batch=use")
    for ends in padded:
        yield reading.ending("last_batch=pad", _replaced_by(ends))
    yield reading.ending("last_batch=drop", full)


def _of_a_short_window(reading: Reading, padded: Sequence[Ends], carries: bool) -> Iterator[Reading]:
    """Yields the readings of a short window: averaged by its true length, filled up as the ranks did, dropped, or added
    to the next one."""
    if all(window.length == window.nominal for window in reading.problem.ends):
        return
    yield reading.by("last_window=step")
    for ends in padded:
        yield reading.ending("last_window=pad", _replaced_by(ends))
    yield reading.ending("last_window=drop", lambda window: window if window.length == window.nominal else None)
    if carries and len(reading.problem.ends) > 1:
        problem = replace(reading.problem.reading([*with_carried(reading.problem.windows)]), in_order=False)
        carried = replace(reading, problem=problem)
        yield from (carried.by("last_window=carry", added) for added in (CARRIES, CARRIES_A_MEAN))


def _of_repeated_samples(reading: Reading) -> Iterator[Reading]:
    """Yields the readings of a sample that the sampler repeats: trained on again, or left out of the loss."""
    problem = reading.problem
    if problem.workload.sampler != "pad" or not problem.in_order:
        return

    def once(end: Window) -> Window | None:
        windows = [window for window in problem.windows if window.epoch == end.epoch and window.index < end.index]
        before = set(chain.from_iterable(window.samples for window in windows))
        return end.only({at for at, number in enumerate(end.samples) if number not in before})

    if any(once(end) != end for end in problem.ends):
        yield reading.by("repeated_samples=trained")
        yield reading.ending("repeated_samples=left out", once)


def _of_an_uneven_window(reading: Reading, *, is_padded: bool) -> Iterator[Reading]:
    """Yields the readings of a smaller last micro-batch: it counts by its samples, or as much as the others, as in
    PyTorch's own loops.

    A weighted loss defines the weight of each sample, so there a mean of means is a catalogued fault. A micro-batch
    that was filled up has only one reading, because the repeated samples give the same numbers.
    """
    ends = reading.problem.ends
    by_samples: Way | None = None
    alike: Deviation | None = None
    if reading.problem.workload.loss != "weighted":
        if any(len(set(map(len, chain(*window.shares)))) > 1 for window in ends):
            by_samples, alike = "uneven_window=by samples", MICRO_BATCHES_ALIKE
        elif any(
            len(window.batch) % (size := reading.problem.layout_of(window).micro_batch_size)
            and len(_batches(window, size)) == window.world_size * window.length > 1
            for window in ends
        ):
            # Only a trainer that distributes the batches itself has an uneven window.
            alike = BATCHES_ALIKE
    yield reading.by(by_samples)
    if alike is not None and not is_padded:
        yield reading.by("uneven_window=by micro-batches", alike)


def _of_averaging(reading: Reading) -> Iterator[Reading]:
    """Yields the readings of averaging in every micro-batch, which is bit-identical for a power of two of ranks."""
    is_odd = any(odd_part(layout.world_size) > 1 for layout in reading.problem.layouts)
    if is_odd and reading.problem.layout.accumulation > 1:
        yield from (reading, reading.by("averaging=in every micro-batch", AVERAGES_EARLY))


def _of_a_skipped_step(reading: Reading, skips: Set[int]) -> Iterator[Reading]:
    """Yields the readings of a schedule after a skipped step: by the steps that were taken, or by the windows."""
    workload = reading.problem.workload
    schedules = workload.schedules if workload.schedule_by == "step" else ()
    stepped = [place for place, window in enumerate(reading.problem.windows) if window.index not in skips]
    if any(schedule[step] != schedule[window] for schedule in schedules for step, window in enumerate(stepped)):
        yield reading.by("schedule_on_skip=wait")
        yield reading.by("schedule_on_skip=advance", ADVANCES_ON_SKIPS)


def _of_the_norm(reading: Reading) -> Iterator[Reading]:
    """Yields the readings of clipping by norm: with or without a number added to the norm."""
    clip = reading.problem.workload.clip
    if clip is not None and clip.kind == "norm":
        yield from (reading, reading.by(None, CLIPS_AT_THE_NORM))


def _of_unused_parameters(reading: Reading) -> Iterator[Reading]:
    """Yields the readings of a parameter that a window does not use: no gradient, or a gradient of zeros."""
    if reading.problem.workload.model.may_go_unused:
        yield reading.by("unused_parameters=skip")
        yield reading.by("unused_parameters=move", MOVES_UNUSED)


#: At least the roundings of an SGD step: decay, momentum and Nesterov's sum have three operations each, the update two.
_OF_A_STEP = 12


class AveragesWeights(AveragedInEveryMicroBatch):
    """Ranks average their weights after each step. Rounding errors are relative to the means over the ranks of the
    magnitudes of each rank's own gradient, buffer and step, not to those of the average."""

    _terms: Vector = ()
    _buffer: Vector = ()
    _lost: Vector = ()

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        self._terms = self.form(window, coefficients).magnitude(weights.magnitude)
        return super().averaged(window, weights, coefficients)

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        before, moved = weights.magnitude, super().update(weights, vector, step)
        fmt, tensors = self.problem.precision.master, self.problem.workload.model.tensor_of
        buffers, lost, radii = [], [], []
        for index, tensor in enumerate(tensors):
            spec, length, error = self.optimizer_of(tensor), Fraction(0), Fraction(0)
            if isinstance(spec, SGD):
                length = self._terms[index] + spec.weight_decay * before[index]
                if self._buffer:
                    length += spec.momentum * self._buffer[index]
                    error = spec.momentum * self._lost[index]
                error += gamma(_OF_A_STEP, fmt) * length + _OF_A_STEP * fmt.quantum
            buffers.append(length)
            lost.append(error)
            # With Nesterov's momentum, a step includes the gradient and the buffer.
            rate = 2 * self.learning_rate_of(tensor, step)
            size = max(before[index], moved.magnitude[index]) + rate * length
            roundings = _OF_A_STEP + self.window.world_size + 2
            radii.append(rate * error + gamma(roundings, fmt) * size + roundings * fmt.quantum)
        self._buffer, self._lost = tuple(buffers), tuple(lost)
        return moved.widen(radii)


AVERAGES_WEIGHTS = Deviation("averages the weights after each step", AveragesWeights)
