"""Known bugs of trainers that evaluate with an average of the weights."""

from __future__ import annotations

from functools import cached_property

from conformance.oracle.affine import Affine
from conformance.oracle.averages import Running, keeps
from conformance.oracle.faults.catalogue import fault
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.problem import Problem


def averages(problem: Problem) -> bool:
    return problem.workload.average is not None


def moves(problem: Problem) -> bool:
    """Whether it is a moving average, which may start with the initial weights."""
    average = problem.workload.average
    return average is not None and average.kind == "ema"


@fault(
    "trains on with its average of the weights after an evaluation",
    averages,
    fix="after the evaluation, put the model's own weights back, from a copy (`clone()`)",
    why="The next step starts from averaged weights",
    edit="change outside",
)
class AverageLeftInModel(Recurrence):
    starts_with_initial = False

    @cached_property
    def average(self) -> Running:
        average = self.problem.workload.average
        assert average is not None
        running = Running(keeps(average), self.problem.precision.master)
        if self.starts_with_initial:
            running.start(self.symbols.exactly(self.problem.workload.start))
        return running

    def update(self, weights: Affine, vector: Affine, step: int) -> Affine:
        self.average.update(super().update(weights, vector, step))
        assert self.average.value is not None
        return self.average.value


@fault(
    "trains on with its moving average of the weights after an evaluation",
    moves,
    fix="after the evaluation, put the model's own weights back, from a copy (`clone()`)",
    why="The next step starts from averaged weights",
    edit="change outside",
)
class MovingAverageLeftInModel(AverageLeftInModel):
    starts_with_initial = True
