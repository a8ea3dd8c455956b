"""Rare bugs in the sum of a window's gradients: parts that count too often, too little, or in another window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from math import isqrt
from typing import TypeAlias

from conformance.oracle.affine import Affine
from conformance.oracle.faults.averaging import only
from conformance.oracle.faults.catalogue import RARE, Condition, accumulating, clips, distributed, fault, has_epochs
from conformance.oracle.optimizers import clipped
from conformance.oracle.recurrence import Recurrence, times
from conformance.workloads.layout import Window
from conformance.workloads.precision import FP16
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector

#: A root is rounded to a multiple of its inverse, far below all formats.
_FINE = 10**30
#: How often a divisor counts another window too.
_Others: TypeAlias = Callable[[Problem, Set[int], Window, Window], int]


def _weighted(problem: Problem) -> bool:
    return problem.workload.loss == "weighted"


class _DividesAgain(Recurrence):
    by: Callable[[Recurrence, Window], Fraction]

    def counted(self, window: Window) -> Vector:
        right, by = super().counted(window), type(self).by(self, window)
        later = {
            index: len(share) - number
            for share in window.shares
            for number, micro_batch in enumerate(share, start=1)
            for index in micro_batch
        }
        return tuple(c / by ** later.get(index, 0) for index, c in enumerate(right))


_DIVISORS: tuple[tuple[str, str, Condition, Callable[[Recurrence, Window], Fraction]], ...] = (
    ("Ranks", "the number of ranks", distributed, lambda rule, window: Fraction(window.world_size)),
    ("MicroBatches", "the number of micro-batches", accumulating, lambda rule, window: Fraction(window.length)),
    ("Scale", "the loss scale", lambda problem: problem.precision.scaled, lambda rule, window: rule.loss_scale),
)
for _name, _what, _condition, _by in _DIVISORS:
    fault(
        f"divides earlier micro-batches of a window again by {_what} with each later one",
        accumulating,
        _condition,
        fix=f"divide by {_what} once, after the window's last backward pass",
        why="A division of the running sum also divides what it already holds",
        edit="change backward",
        among=RARE,
    )(type(f"Divides{_name}Again", (_DividesAgain,), {"by": _by}))


class _ShortWindowNotCleared(Recurrence):
    is_reduced: bool
    _left: Affine | None = None

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        vector, total = super().trained(window, weights, coefficients), self.problem.total_weight(window)
        again = Fraction(window.world_size if self.is_reduced else 1)
        summed = vector.scaled(total) if self._left is None else vector.scaled(total).plus(self._left.scaled(again))
        self._left = summed if window.length < window.nominal else None
        return summed.scaled(1 / total)


for _name, _is_reduced, _what in (("Own", False, ""), ("Reduced", True, ", once for each rank")):
    fault(
        f"adds the sums of an epoch's short last window, which has stepped, to the next epoch's first window{_what}",
        lambda problem: any(window.length < window.nominal for window in problem.windows[:-1]),
        fix="clear the sums after each step, also after that of a short window",
        why="The sums of a short window stay, and the next window adds to them",
        edit="change step",
        among=RARE,
    )(type(f"{_name}SumsOfShortWindowKept", (_ShortWindowNotCleared,), {"is_reduced": _is_reduced}))


@fault(
    "leaves the last averaged gradient of a parameter in the buffers of ranks that do not use it",
    distributed,
    lambda problem: problem.workload.model.may_go_unused,
    fix="set the buffers that ranks reduce to zero before each window",
    why="The reduction adds the stale part to the new gradients of other ranks",
    edit="change gradient; add the clearing of the buffers above unscale|clip|step",
    among=RARE,
)
class StaysInBuffer(Recurrence):
    _before: Affine | None = None

    def trained(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        vector, size = super().trained(window, weights, coefficients), window.world_size
        if self._before is not None:
            rest = [Fraction(size - self._users(window, tensor), size) for tensor in self.tensors]
            vector = vector.plus(self.joined((self._before.scaled(one), [n]) for n, one in enumerate(rest)))
        self._before = vector
        return vector

    def _users(self, window: Window, tensor: int) -> int:
        own = ([window.batch[index] for index in chain(*share)] for share in window.shares)
        return sum(self.problem.workload.uses(tensor, samples) for samples in own)

    def steps_on(self, tensor: int) -> bool:
        return self.trains(tensor, self.window.index)


class _OtherDivisor(Recurrence):
    divisor: Callable[[Window], Fraction]

    def counted(self, window: Window) -> Vector:
        by = type(self).divisor(window)
        return times(super().counted(window), self.problem.total_weight(window) / by if by else Fraction(1))


def _weight(window: Window, micro_batches: Sequence[Sequence[int]]) -> Fraction:
    return sum((window.batch[index].weight for index in chain(*micro_batches)), Fraction(0))


def _largest(window: Window) -> Fraction:
    return max(_weight(window, share) for share in window.shares)


def _largest_of_all(window: Window) -> Fraction:
    return _largest(window) * window.world_size


def _of_first(window: Window) -> Fraction:
    return sum((_weight(window, share[:1]) * len(share) for share in window.shares), Fraction(0))


def _is_other(divisor: Callable[[Window], Fraction]) -> Condition:
    return lambda problem: any(divisor(one) not in (0, problem.total_weight(one)) for one in problem.windows)


_WRONG_DIVISORS: tuple[tuple[str, str, str, Condition, Callable[[Window], Fraction]], ...] = (
    (
        "LargestWeight",
        "the largest weight of a rank's samples instead of the sum over the ranks",
        "all-reduce the ranks' weights as a sum",
        _is_other(_largest_of_all),
        _largest,
    ),
    (
        "LargestWeightForAll",
        "the number of ranks times the largest weight of a rank's samples instead of the sum over the ranks",
        "all-reduce the ranks' weights as a sum",
        _is_other(_largest_of_all),
        _largest_of_all,
    ),
    (
        "WeightOfFirstMicroBatch",
        "the number of micro-batches times the weight of the first instead of their sum",
        "add up the weights of all micro-batches of the window",
        accumulating,
        _of_first,
    ),
)
for _name, _what, _fix, _condition, _divisor in _WRONG_DIVISORS:
    fault(
        f"divides by {_what}",
        _condition,
        _is_other(_divisor),
        fix=_fix,
        why="Gradients are wrong by the ratio of the two divisors",
        edit="change divisor; change division; find the divisor at or above backward",
        among=RARE,
    )(type(f"DividesBy{_name}", (_OtherDivisor,), {"divisor": _divisor}))


class _CountsOtherWindows(Recurrence):
    """Divides by the count of a window and of ``others``, each as often as it says, given the skipped windows."""

    others: _Others
    _next = 0

    def counted(self, window: Window) -> Vector:
        skips = frozenset(range(self._next, window.index))
        self._next = max(self._next, window.index + 1)
        total, others = self.problem.total_weight(window), (one for one in self.problem.windows if one != window)
        times_of = partial(type(self).others, self.problem, skips, window)
        every = sum((times_of(one) * self.problem.total_weight(one) for one in others), total)
        return times(super().counted(window), total / every if every else Fraction(1))


def _read(others: _Others) -> _Others:
    """Limits these windows to those that the same process has read before."""

    def are_read(problem: Problem, skips: Set[int], window: Window, other: Window) -> int:
        stop = problem.resumed_at or 0
        is_read = other.index < window.index and (other.index >= stop or window.index < stop)
        return others(problem, skips, window, other) if is_read else 0

    return are_read


def _overflows(problem: Problem) -> bool:
    """Whether a target is so large that gradients of its loss, which is scaled, are infinite."""
    most = max(abs(sample.y) for window in problem.windows for sample in window.batch)
    return problem.precision.scaled and most * problem.workload.scale.init_scale > FP16.largest


_OTHERS: tuple[tuple[str, str, Condition, _Others], ...] = (
    (
        "AllWindows",
        "all windows so far",
        lambda problem: len(problem.windows) > 1,
        _read(lambda problem, skips, window, other: True),
    ),
    # The sum over the ranks may be kept too: then each rank adds it to the next one.
    (
        "AllWindows",
        "all windows so far",
        distributed,
        _read(lambda problem, skips, window, other: window.world_size ** (window.index - other.index)),
    ),
    (
        "WindowsOfEpoch",
        "the epoch's windows so far",
        has_epochs,
        _read(lambda problem, skips, window, other: other.epoch == window.epoch),
    ),
    (
        "WholeEpoch",
        "all windows of the epoch, also of later ones",
        lambda problem: problem.workload.windows_of_epoch > 1,
        lambda problem, skips, window, other: other.epoch == window.epoch,
    ),
    (
        "WindowBefore",
        "this window and the one before",
        lambda problem: len(problem.windows) > 1,
        _read(lambda problem, skips, window, other: other.index == window.index - 1),
    ),
    (
        "EndOfEpoch",
        "this window and, in an epoch's first one, the last window of the epoch before",
        has_epochs,
        _read(lambda problem, skips, window, other: other.index == window.index - 1 and other.epoch != window.epoch),
    ),
    (
        "SkippedWindows",
        "this window and of skipped ones before it",
        _overflows,
        _read(lambda problem, skips, window, other: {*range(other.index, window.index)} <= skips),
    ),
)
for _name, _what, _condition, _others in _OTHERS:
    fault(
        f"divides a window's loss by the count of {_what}",
        _condition,
        fix="set the count of samples, or of their weight, to zero before each window",
        why="The count includes other windows, so the gradients are too small",
        edit="change divisor; change division; find the divisor at or above backward",
        among=RARE,
    )(type(f"Counts{_name}", (_CountsOtherWindows,), {"others": _others}))


@fault(
    "leaves the samples' weights out of the loss, but divides it by their sum",
    _weighted,
    fix="multiply each sample's loss by its weight",
    why="Light samples count as much as heavy ones, and the divisor is not their number",
    edit="change loss; find the loss at or above backward",
    among=RARE,
)
class WeightsInDivisorOnly(Recurrence):
    def counted(self, window: Window) -> Vector:
        return (1 / self.problem.total_weight(window),) * len(window.batch)


class _ByOwnNorm(Recurrence):
    """Clips parts of a window's gradient, each by its norm, before they are summed."""

    def parts(self, window: Window) -> Iterator[tuple[int, ...]]:
        """Yields the samples of each part."""
        raise NotImplementedError

    def window_gradient(self, window: Window, weights: Affine) -> Affine:
        clip, coefficients = self.problem.workload.clip, self.coefficients(window)
        assert clip is not None
        total = self.symbols.exactly([Fraction(0)] * len(weights))
        for part in self.parts(window):
            own = only(coefficients, [part])
            if share := sum(own, Fraction(0)):
                mean = self.trained(window, weights, times(own, 1 / share))
                fmt = self.problem.precision.master
                total = total.plus(clipped(mean, replace(clip, kind="norm"), fmt, self.ledger).scaled(share))
        return total


@fault(
    "clips each sample's gradient by its norm instead of the window's",
    clips,
    at="clip",
    fix="clip once, after the window's samples are averaged",
    why="The threshold is for the mean; each sample of it is cut separately",
    edit="change clip|gradient",
    among=RARE,
)
class ClipsEachSample(_ByOwnNorm):
    def parts(self, window: Window) -> Iterator[tuple[int, ...]]:
        return ((index,) for index in range(len(window.batch)))


@fault(
    "clips each rank's gradient by its norm before averaging over ranks",
    clips,
    distributed,
    at="clip",
    fix="clip after the gradients are averaged over the ranks, and as the task asks",
    why="Each rank clips by its own norm, and a mean of clipped gradients is not the clipped mean",
    edit="change clip|gradient",
    among=RARE,
)
class ClipsEachRankByNorm(_ByOwnNorm):
    def parts(self, window: Window) -> Iterator[tuple[int, ...]]:
        return (tuple(chain(*share)) for share in window.shares)


class _OtherNorm(Recurrence):
    is_larger: bool

    def clip(self, vector: Affine) -> Affine:
        clip, ranks = self.problem.workload.clip, self.window.world_size
        root = Fraction(isqrt(ranks * _FINE**2), _FINE)
        measured = vector.scaled(root if self.is_larger else root / ranks)
        assert clip is not None
        return clipped(vector, clip, self.problem.precision.master, self.ledger, measured=[measured])


for _name, _is_larger, _what in (
    ("Smaller", False, "is divided by the number of ranks"),
    ("Larger", True, "counts all gradients once for each rank"),
):
    fault(
        f"clips by a norm whose square {_what}",
        lambda problem: problem.workload.clip is not None and problem.workload.clip.kind == "norm",
        distributed,
        at="clip",
        fix="add up the squares of each gradient once over all ranks, and do not average them",
        why="The norm is wrong by the root of the number of ranks, and so is the clipped gradient",
        edit="change clip|gradient",
        among=RARE,
    )(type(f"ClipsBy{_name}Norm", (_OtherNorm,), {"is_larger": _is_larger}))
