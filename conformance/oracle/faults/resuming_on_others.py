"""A resume on another number of ranks."""

from __future__ import annotations

from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.gradient import enclosed
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import Vector


class _ResumedOnOthers(Recurrence):
    """Averages over the ranks otherwise once it is resumed."""

    def over_ranks(self, window: Window) -> Fraction:
        layouts = self.problem.layouts
        times = Fraction(layouts[0].world_size, layouts[-1].world_size)
        return self.factor(times) if self.problem.life_of(window.index) else Fraction(1)

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        if not self.problem.life_of(window.index):
            return super().averaged(window, weights, coefficients)
        # What data are exact for is another divisor.
        return enclosed(self.problem, window, self.form(window, coefficients), weights, self.loss_scale)

    def factor(self, times: Fraction) -> Fraction:
        """``times``: how many times as many ranks there were before the stop."""
        raise NotImplementedError


def _resumes_on_others(problem: Problem) -> bool:
    return problem.resumed_layout is not None


@fault("divides by the number of ranks before the stop once it is resumed on another number", _resumes_on_others)
class DividesByRanksOfTheStop(_ResumedOnOthers):
    def factor(self, times: Fraction) -> Fraction:
        return 1 / times


@fault("multiplies by the number of ranks before the stop once it is resumed on another number", _resumes_on_others)
class MultipliesByRanksOfTheStop(_ResumedOnOthers):
    def factor(self, times: Fraction) -> Fraction:
        return times
