"""Judges the averages of weights that a trainer reports, if its weights are correct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.cases.case import Case
from conformance.laws.subjects import Run
from conformance.oracle.affine import Enclosure
from conformance.oracle.averages import Averaging, averages, right, wrong
from conformance.oracle.recurrence import Trajectory
from conformance.trace.events import Average, AverageReport
from conformance.verdict.comparison import outside
from conformance.verdict.evidence import exactly, place, values
from conformance.workloads.behaviour import Way
from conformance.workloads.precision import Format


@dataclass(frozen=True)
class Averaged:
    """``way``: a choice of the trainer, if its averages are correct. ``missing``: averages that the adapter does not
    report, in words. ``wrong``: the bug; ``diagnosis``: its name; ``advice``: what to change; ``edit``: where,
    as data. ``where``: the line of the first update that was seen, or of the first report."""

    way: Way | None = None
    missing: str | None = None
    wrong: str | None = None
    diagnosis: str = ""
    advice: str = ""
    edit: str = ""
    where: str | None = None


def judged_average(case: Case, runs: Sequence[Run], trajectory: Trajectory) -> Averaged:
    """Judges all averages that ranks report, in all lives of a run whose weights are those of ``trajectory``."""
    average, problem = case.problem.workload.average, case.problem
    assert average is not None
    said = [event for run in runs for rank in run.ranks for event in rank.of(AverageReport)]
    reports = [event for event in said if event.weights and None not in event.weights]
    last = problem.windows[-1].index
    if not any(event.step == last for event in reports):
        return Averaged(
            missing=f"You reported no average of all weights after window {last}, the last one: average as "
            "`task.average` says, and pass the result to `task.report_average`."
        )
    others = [(by, _first_other(reports, averages(problem, trajectory, by))) for by in right(average)]
    if (fits := next((by for by, other in others if other is None), None)) is not None:
        return Averaged(way=fits.way if trajectory.skips else None)
    bugs = (by for by in wrong(problem) if by.stored is None or _are_in(by.stored, reports))
    fitting = (by for by in bugs if _first_other(reports, averages(problem, trajectory, by)) is None)
    known = next(fitting, Averaging(fix=f"average as `task.average` says: {average.kind}"))
    event, index, box = max((other for _, other in others if other is not None), key=lambda other: other[0].step)
    what = (
        f"rank {event.rank} reports {values(event.weights or ())[index]} for {problem.workload.model.elements[index]}"
    )
    numbers = f"after window {event.step}, {what} instead of {float(box.center[index])}"
    updates = [update for run in runs for update in run.ranks[event.rank].of(Average)]
    return Averaged(
        wrong=f"{f'the trainer {known.text}' if known.text else 'the average of the weights is wrong'}: {numbers}",
        diagnosis=known.key or known.text,
        advice=known.fix,
        edit=known.edit,
        where=place(updates[0] if updates else event),
    )


def _are_in(fmt: Format, reports: Sequence[AverageReport]) -> bool:
    """Whether the format has all reported numbers."""
    numbers = [exactly(value) for event in reports for value in values(event.weights or ())]
    return all(value is not None and fmt.holds(value) for value in numbers)


def _first_other(
    reports: Sequence[AverageReport], expected: Mapping[int, Enclosure]
) -> tuple[AverageReport, int, Enclosure] | None:
    """The first report, by its window, of another average than this, with an entry that differs."""
    for event in sorted(reports, key=lambda event: event.step):
        box = expected[event.step]
        if (index := outside(box, values(event.weights or ()))) is not None:
            return event, index, box
    return None
