"""Stop and resume: the place in the data."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.oracle.faults.catalogue import fault
from conformance.oracle.faults.epochs import in_first_order, shuffles
from conformance.oracle.faults.resuming import resumes
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem


@fault(
    "goes on in the order of the first epoch when it is resumed in a later one, as its sampler is not told the epoch",
    resumes,
    shuffles,
    # Where the windows at the ends of epochs are left out, none may follow the stop.
    lambda problem: any(window.epoch > 0 for window in problem.windows[problem.resumed_at :][:1]),
)
class EpochNotRestored(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return [in_first_order(self.problem, window) for window in super().read_on(stop)]


def _reads_on_in_place(problem: Problem) -> bool:
    """Whether windows have no loss scales, which are known for those that a trainer reads in their place."""
    return resumes(problem) and not problem.precision.scaled


@fault("reads the data from the beginning again when it is resumed", _reads_on_in_place)
class DataReadAgain(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows_of_lives[-1]

    def place(self, step: int) -> int:
        return super().place(min(step, self.problem.workload.steps - 1))


@fault("trains on the last window before the stop again when it is resumed", _reads_on_in_place)
class WindowReadAgain(DataReadAgain):
    def read_on(self, stop: int) -> Sequence[Window]:
        return super().read_on(stop)[stop - 1 :]


@fault("leaves out a window when it is resumed", _reads_on_in_place)
class WindowLeftOut(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows[stop + 1 :]
