"""Known bugs with short windows, smaller batches and ranks without data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, groupby, pairwise
from operator import attrgetter

from conformance.oracle.faults.catalogue import accumulating, fault, runs_out
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window, window_of
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


@fault(
    "divides a short accumulation window by the nominal length",
    lambda problem: any(window.length < window.nominal for window in problem.windows),
    fix="divide by what that window really has: its micro-batches, or its samples",
    why="The divisor is larger than the number of micro-batches, so their mean comes out too small",
    edit="change divisor; change division; find the divisor at or above backward",
)
class NominalLength(Recurrence):
    def over_window(self, window: Window) -> Fraction:
        return Fraction(window.length, window.nominal)


def _continues_after_a_short_window(problem: Problem) -> bool:
    """Whether windows come after a short one."""
    has_mean = problem.workload.loss == "mean"
    return has_mean and any(window.length < window.nominal for window in problem.windows[:-1])


def with_carried(windows: Sequence[Window]) -> Iterator[Window]:
    """Yields the windows if no short window is stepped, and its micro-batches come first in the next one."""
    left: Window | None = None
    for window in windows:
        if left is not None:
            window = _joined(left, window)
        left = window if window.length < window.nominal else None
        if left is None:
            yield window


def _left(window: Window) -> set[int]:
    """The samples of the micro-batches that a window got from the previous one."""
    extra = max(window.length - window.nominal, 0)
    return {index for share in window.shares for micro_batch in share[:extra] for index in micro_batch}


@fault(
    "adds the gradients of an epoch's short last window to the next epoch's first window",
    _continues_after_a_short_window,
    fix="step at the end of an epoch, or clear the gradients",
    why="No step ends the short window, so its gradients stay in `.grad` for the next one",
    edit="zero_grad below step",
)
class AddsWhatIsLeft(Recurrence):
    def read(self) -> Sequence[Window]:
        return list(with_carried(super().read()))

    def counted(self, window: Window) -> Vector:
        own = len(window.batch) - len(_left(window))
        return (Fraction(1, own),) * len(window.batch)


@fault(
    "adds the mean gradient of an epoch's short last window to that of the next epoch's first window",
    _continues_after_a_short_window,
    fix="step at the end of an epoch, or clear the gradients",
    why="No step ends the short window, so its mean stays in `.grad` for the next one",
    edit="zero_grad below step",
)
class AddsTheMeanOfWhatIsLeft(AddsWhatIsLeft):
    def counted(self, window: Window) -> Vector:
        left, size = _left(window), len(window.batch)
        return tuple(Fraction(1, len(left) if index in left else size - len(left)) for index in range(size))


@fault(
    "keeps counting micro-batches after a short window, so windows of the next epoch end too early",
    _continues_after_a_short_window,
    fix="restart the count of micro-batches in each epoch",
    why="The count does not restart, so windows end at other micro-batches",
    edit="change step",
)
class CountsOnInNextEpoch(Recurrence):
    def read(self) -> Sequence[Window]:
        found, count = list[Window](), 0
        for number, epoch in groupby(super().read(), attrgetter("epoch")):
            windows = list(epoch)
            shares = [list(chain(*own)) for own in zip(*(window.numbers for window in windows), strict=True)]
            length, nominal = len(shares[0]), windows[0].nominal
            ends = [end for end in range(1, length) if (count + end) % nominal == 0]
            for begin, end in pairwise([0, *ends, length]):
                parts = [share[begin:end] for share in shares]
                found.append(window_of(self.problem.workload, len(found), number, parts, nominal))
            count += length
        return found


def _joined(one: Window, two: Window) -> Window:
    moved = len(one.batch)
    own = (tuple(tuple(moved + at for at in micro_batch) for micro_batch in share) for share in two.shares)
    return replace(
        two,
        samples=one.samples + two.samples,
        batch=one.batch + two.batch,
        shares=tuple(before + share for before, share in zip(one.shares, own, strict=True)),
    )


def _has_smaller_batch(problem: Problem) -> bool:
    return any(
        len(window.batch) < problem.layout_of(window).micro_batch_size * window.length * window.world_size
        for window in problem.windows
    )


@fault(
    "divides a smaller last batch by the nominal number of samples",
    _has_smaller_batch,
    lambda problem: problem.workload.loss == "mean" and not runs_out(problem),
    fix="divide by the number of samples that the window really has, over all ranks and micro-batches",
    why="The divisor is larger than the number of samples, so their mean comes out too small",
    edit="change divisor; change division; find the divisor at or above backward",
)
class NominalSamples(Recurrence):
    def over_samples(self, window: Window) -> Fraction:
        full = self.problem.layout_of(window).micro_batch_size
        return Fraction(len(window.batch), full * window.length * window.world_size)


@fault(
    "averages over the ranks in every micro-batch, which shrinks the earlier ones if ranks run out of data",
    accumulating,
    runs_out,
    fix="average over the ranks once, after the window's last backward pass",
    why="The average of an earlier micro-batch is averaged again, also with ranks that have no data",
    edit="add the average over the ranks above clip|step",
)
class AveragedAgain(Recurrence):
    def over_ranks(self, window: Window) -> Fraction:
        return Fraction(1)

    def counted(self, window: Window) -> Vector:
        # Ranks without data add zeros to the earlier averages.
        share = Fraction(window.with_data, window.world_size)
        factors = [
            (index, share ** (window.length - number))
            for own in window.shares
            for number, micro_batch in enumerate(own)
            for index in micro_batch
        ]
        right = super().counted(window)
        return tuple(right[index] * factor for index, factor in sorted(factors))
