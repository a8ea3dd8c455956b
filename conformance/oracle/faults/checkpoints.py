"""Known bugs of stop and resume: incomplete checkpoints, and wrong loads."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from conformance.oracle.affine import Affine
from conformance.oracle.faults.catalogue import distributed, fault, has_groups, schedules
from conformance.oracle.faults.data_and_weights import in_first_order, shuffles
from conformance.oracle.gradient import enclosed
from conformance.oracle.optimizers import AdamWRule
from conformance.oracle.recurrence import Recurrence
from conformance.workloads.layout import Window
from conformance.workloads.problem import Problem
from conformance.workloads.workload import SGD, AdamW, Vector


def resumes(problem: Problem) -> bool:
    return problem.resumed_at is not None


def _keeps_state(problem: Problem) -> bool:
    optimizer = problem.workload.optimizer
    return not isinstance(optimizer, SGD) or bool(optimizer.momentum)


@fault(
    "resumes from the initial weights",
    resumes,
    fix="load the model's `state_dict` before training continues",
    why="Training starts from the initial weights again: what the first part learned is lost",
    edit="restore weights",
)
class WeightsNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        super().resumed(weights, taken)
        return self.symbols.exactly(self.problem.workload.start)


@fault(
    "resumes without the optimizer's state",
    resumes,
    _keeps_state,
    fix="save and load the optimizer's `state_dict`",
    why="An empty state makes the first step after the resume like the first step of a run",
    edit="restore optimizer",
)
class OptimizerStateNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            rule.forget()
        return super().resumed(weights, taken)


@fault(
    "resumes with AdamW's moments, but restarts its step count",
    resumes,
    lambda problem: isinstance(problem.workload.optimizer, AdamW),
    fix="save and load all of the optimizer's `state_dict`, including `step`",
    why="A restarted count corrects the old moments as if they were new: the step becomes too long",
    edit="restore optimizer",
)
class StepCountNotRestored(Recurrence):
    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            if isinstance(rule, AdamWRule):
                rule.steps = 0
        return super().resumed(weights, taken)


@fault(
    "gives all parameter groups the settings of the first after a resume",
    resumes,
    has_groups,
    fix="load each group's settings with the optimizer's `state_dict`",
    why="The first group's settings then apply to the parameters of all groups",
    edit="restore optimizer",
)
class GroupsAlikeOnceResumed(Recurrence):
    _has_resumed = False

    def resumed(self, weights: Affine, taken: int) -> Affine:
        for rule, _ in self.rules:
            rule.spec = self.optimizer()
        self._has_resumed = True
        return super().resumed(weights, taken)

    def learning_rate_of(self, tensor: int, step: int) -> Fraction:
        return self.learning_rate(step) if self._has_resumed else super().learning_rate_of(tensor, step)


class _Rescheduled(Recurrence):
    """Resumes at another place in the learning-rate schedule."""

    _taken: int | None = None

    def resumed(self, weights: Affine, taken: int) -> Affine:
        self._taken = taken
        return super().resumed(weights, taken)

    def place(self, step: int) -> int:
        place = step if self._taken is None else self.resumed_place(step, self._taken)
        return super().place(min(place, self.problem.workload.steps - 1))

    def resumed_place(self, step: int, taken: int) -> int:
        """The place in the schedule of a step after the resume, which came after ``taken`` steps."""
        raise NotImplementedError


@fault(
    "restarts the learning-rate schedule after a resume",
    resumes,
    schedules,
    fix="save and load the schedule's `state_dict`",
    why="A new schedule starts at its first learning rate, not at that of the stop",
    edit="restore scheduler",
)
class ScheduleNotRestored(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step - taken


def has_other_rates_later(problem: Problem) -> bool:
    """Whether a schedule that restarts after the first step of a resume has other rates than the correct one."""
    skips = Recurrence(problem).run().skips if problem.precision.scaled else frozenset[int]()
    taken = sum(window.index not in skips for window in problem.windows[: problem.resumed_at])
    later = range(taken + 1, len(problem.windows) - len(skips))
    return any(one[step] != one[step - taken] for one in problem.workload.schedules for step in later)


@fault(
    "restores the learning rate, but restarts its schedule after a resume",
    resumes,
    schedules,
    has_other_rates_later,
    fix="save and load the schedule's `state_dict`; the optimizer's has only its present rate",
    why="The first step uses the restored rate; the new schedule then counts from 0",
    edit="restore scheduler",
)
class RateAloneRestored(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step if step == taken else step - taken


@fault(
    "is one step ahead in the learning-rate schedule after a resume",
    resumes,
    schedules,
    fix="restore the schedule's position, and do not step it again after loading",
    why="Each step after the resume uses the learning rate of the next one",
    edit="restore scheduler",
)
class ScheduleAheadOnceResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step + 1


@fault(
    "is one step behind in the learning-rate schedule after a resume",
    resumes,
    schedules,
    fix="save the schedule after it stepped, in the same place as the optimizer",
    why="Each step after the resume uses the learning rate of the previous one",
    edit="find what is saved at or above save",
)
class ScheduleBehindOnceResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return step - 1


@fault(
    "takes the first step after a resume at the initial learning rate of the schedule",
    resumes,
    schedules,
    fix="load the schedule's state before the first step, and the optimizer's after the schedule is made",
    why="Making a schedule sets the initial rate, which overwrites the restored one until its next step",
    edit="restore scheduler",
)
class FirstRateWhenResumed(_Rescheduled):
    def resumed_place(self, step: int, taken: int) -> int:
        return 0 if step == taken else step


@fault(
    "resumes with only the weights, without the optimizer's state and the schedule",
    resumes,
    _keeps_state,
    fix="save and load the `state_dict` of optimizer and schedule too",
    why="Optimizer and schedule start from the beginning, so the step has no momentum and the first learning rate",
    edit="find what is restored from load",
)
class WeightsAloneRestored(OptimizerStateNotRestored, ScheduleNotRestored):
    pass


@fault(
    "resumes with a new optimizer, which has no state, and the initial learning rate until the schedule steps",
    resumes,
    _keeps_state,
    fix="save and load the optimizer's `state_dict`, which also has its learning rate",
    why="A new optimizer has empty state, and its rate is not that of the schedule",
    edit="restore optimizer",
)
class OptimizerNotRestored(OptimizerStateNotRestored):
    _kept: int | None = None

    def resumed(self, weights: Affine, taken: int) -> Affine:
        stop = self.read()[self._read]
        self._kept = stop.epoch if self.problem.workload.schedule_by == "epoch" else taken
        return super().resumed(weights, taken)

    def place(self, step: int) -> int:
        place = super().place(step)
        return 0 if place == self._kept else place


def _resumes_inside(problem: Problem) -> bool:
    return problem.resumed_inside > 0


class _ResumedInside(Recurrence):
    """Counts samples differently in the window of the stop."""

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
        """The factor of a rank's sample, as a multiple of the correct one; ``before``: read before the stop."""
        raise NotImplementedError


@fault(
    "loses micro-batches after a resume inside a window",
    _resumes_inside,
    fix="stop after a step, or save the gradients of the window that has started",
    why="The window's later micro-batches step alone: the earlier ones' gradients were not saved",
    edit="find what is saved at or above save",
)
class HalfWindowLost(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(not before)


@fault(
    "counts micro-batches twice after a resume inside a window",
    _resumes_inside,
    fix="skip a window's micro-batches whose gradients are restored",
    why="The restored gradients already contain these micro-batches, and their backward adds them again",
    edit="find the skip of the window's first micro-batches at or above forward|backward",
)
class HalfWindowTwice(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1 + before)


@fault(
    "divides by the remaining micro-batches of a window after a resume inside the window",
    _resumes_inside,
    fix="divide by the window's full length after a resume too",
    why="A smaller divisor makes the gradients of the window's rest too large",
    edit="change divisor; change division; find the divisor at or above backward",
)
class DividesByRestOfWindow(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1) if before else Fraction(window.length, window.length - self.problem.resumed_inside)


@fault(
    "gives all ranks rank 0's gradients of a window's first micro-batches after a resume inside the window",
    _resumes_inside,
    distributed,
    fix="save and restore the accumulated gradients of each rank",
    why="The average then has rank 0's first micro-batches once for each rank, and nobody else's",
    edit="find what is saved at or above save",
)
class HalfWindowOfFirstRank(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(1) if not before else Fraction(0 if rank else window.world_size)


@fault(
    "restores a window's first micro-batches only on rank 0 after a resume inside the window",
    _resumes_inside,
    distributed,
    fix="restore the accumulated gradients on all ranks",
    why="The average then lacks the first micro-batches of all ranks except 0",
    edit="find what is restored from load",
)
class HalfWindowLostOnOtherRanks(_ResumedInside):
    def factor(self, window: Window, rank: int, before: bool) -> Fraction:
        return Fraction(not before or rank == 0)


class _ResumedOnOthers(Recurrence):
    """Averages over the ranks differently after a resume."""

    def over_ranks(self, window: Window) -> Fraction:
        layouts = self.problem.layouts
        times = Fraction(layouts[0].world_size, layouts[-1].world_size)
        return self.factor(times) if self.problem.life_of(window.index) else Fraction(1)

    def averaged(self, window: Window, weights: Affine, coefficients: Vector) -> Affine:
        if not self.problem.life_of(window.index):
            return super().averaged(window, weights, coefficients)
        # The data are exact for another divisor.
        return enclosed(self.problem, window, self.form(window, coefficients), weights, self.loss_scale)

    def factor(self, times: Fraction) -> Fraction:
        """The wrong factor. ``times``: the number of ranks before the stop relative to after it."""
        raise NotImplementedError


def _resumes_on_others(problem: Problem) -> bool:
    return problem.resumed_layout is not None


@fault(
    "divides by the old number of ranks after a resume on a different number",
    _resumes_on_others,
    fix="divide by the present number of ranks; do not restore it",
    why="The sum over the present ranks is divided by the number of ranks before the stop",
    edit="change restored; find the restored number of ranks from load",
)
class DividesByRanksOfTheStop(_ResumedOnOthers):
    def factor(self, times: Fraction) -> Fraction:
        return 1 / times


@fault(
    "multiplies by the old number of ranks after a resume on a different number",
    _resumes_on_others,
    fix="multiply by the present number of ranks; do not restore it",
    why="The loss is multiplied by the number of ranks before the stop, then averaged over the present ones",
    edit="change restored; find the restored number of ranks from load",
)
class MultipliesByRanksOfTheStop(_ResumedOnOthers):
    def factor(self, times: Fraction) -> Fraction:
        return times


@fault(
    "reads in the order of the first epoch after a resume in a later one, without calling `set_epoch`",
    resumes,
    shuffles,
    # If the windows at the ends of epochs are left out, none may follow the stop.
    lambda problem: any(window.epoch > 0 for window in problem.windows[problem.resumed_at :][:1]),
    fix="call `sampler.set_epoch(epoch)` with the restored epoch",
    why="The sampler shuffles with epoch 0, so windows have other samples",
    edit="find what is restored from load",
)
class EpochNotRestored(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return [in_first_order(self.problem, window) for window in super().read_on(stop)]


def _reads_on_in_place(problem: Problem) -> bool:
    """Whether windows have no loss scales, which are recorded for the windows that a trainer reads instead."""
    return resumes(problem) and not problem.precision.scaled


@fault(
    "reads the data from the start again after a resume",
    _reads_on_in_place,
    fix="skip the batches of the epoch that were read before the stop",
    why="Windows after the resume have the samples from the start of the epoch",
    edit="find what is restored from load",
)
class DataReadAgain(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows_of_lives[-1]

    def place(self, step: int) -> int:
        return super().place(min(step, self.problem.workload.steps - 1))


@fault(
    "repeats the last window before the stop after a resume",
    _reads_on_in_place,
    fix="save the position after the window's step, and begin with the next window",
    why="The last window's gradient is applied a second time",
    edit="find what is saved at or above save",
)
class WindowReadAgain(DataReadAgain):
    def read_on(self, stop: int) -> Sequence[Window]:
        return super().read_on(stop)[stop - 1 :]


@fault(
    "skips a window after a resume",
    _reads_on_in_place,
    fix="begin with the first window that was not stepped",
    why="The window's gradient is never applied",
    edit="find what is restored from load",
)
class WindowLeftOut(Recurrence):
    def read_on(self, stop: int) -> Sequence[Window]:
        return self.problem.windows[stop + 1 :]
