"""A stop inside a window: what becomes of the gradients of the micro-batches before it."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.conditions import distributed
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


def _resumes_inside(problem: Problem) -> bool:
    return problem.resumed_inside > 0


class _ResumedInside(Recurrence):
    """Counts samples of the window in which it is stopped otherwise."""

    def counted(self, window: Window) -> Vector:
        counted = super().counted(window)
        if window.index != self.problem.resumed_at:
            return counted
        stop = self.problem.resumed_inside
        factors = {
            index: self.factor(window, rank, number < stop)
            for rank, share in enumerate(window.shares)
            for number, micro_batch in enumerate(share)
            for index in micro_batch
        }
        return tuple(factors[index] * one for index, one in enumerate(counted))

    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        """What a sample of a rank counts, in multiples of the right factor; ``before``: whether it was read before the
        stop."""
        raise NotImplementedError


@fault("loses the gradients of a window's first micro-batches when it is resumed inside the window", _resumes_inside)
class HalfWindowLost(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(not before)


@fault(
    "adds the gradients of a window's first micro-batches twice, or the sum of two ranks' on each of them, when it is "
    "resumed inside the window",
    _resumes_inside,
)
class HalfWindowTwice(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1 + before)


@fault("divides by the micro-batches that are left of a window when it is resumed inside the window", _resumes_inside)
class DividesByRestOfWindow(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1) if before else Fraction(window.length, window.length - self.problem.resumed_inside)


@fault(
    "gives all ranks the first rank's gradients of a window's first micro-batches when it is resumed inside the window",
    _resumes_inside,
    distributed,
)
class HalfWindowOfFirstRank(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1) if not before else Fraction(0 if rank else window.world_size)


@fault(
    "restores the gradients of a window's first micro-batches on the first rank alone when it is resumed inside it",
    _resumes_inside,
    distributed,
)
class HalfWindowLostOnOtherRanks(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(not before or rank == 0)
