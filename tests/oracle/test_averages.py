"""Averages of weights: they are torch's, and each bug shows."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from conformance.cases.case import Case
from conformance.cases.matrix import plan
from conformance.oracle.averages import Averaging, averages, right, wrong
from conformance.oracle.recurrence import Recurrence
from tests.cases.test_matrix import EVERYTHING

CASES = [
    one.case
    for backend in ("single", "ddp")
    for one in plan(EVERYTHING, backend)
    if one.case.workload in ("ema", "swa", "ema-overflow") and one.case.device == "cpu"
]
TWICE = "updates its average of the weights twice for each step"
OFTEN = "updates its average of the weights in each micro-batch instead of once after each step"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_bug_shows(case):
    """Except where it does no harm: a mean of everything twice is the same."""
    run = Recurrence(case.problem).run()
    answers = [averages(case.problem, run, by) for by in right(case.problem.workload.average)]
    harmless = {TWICE} if case.workload == "swa" else set()
    harmless |= {OFTEN} if case.accumulation < 2 else set()
    for by in wrong(case.problem):
        found = averages(case.problem, run, by)
        shows = all(max(one[at].gap(found[at]) for at in found) > 1 for one in answers)
        assert shows or by.stored or by.text in harmless, by


@pytest.mark.parametrize("case", [case for case in CASES if case.workload != "swa"], ids=str)
def test_a_moving_average_is_exact(case):
    run = Recurrence(case.problem).run()
    for by in right(case.problem.workload.average):
        assert all(box.exact for box in averages(case.problem, run, by).values())


@pytest.mark.parametrize("name", ["ema", "swa", "ema-overflow"])
@pytest.mark.parametrize("on_skip", [False, True])
def test_torchs_averages_are_right(name, on_skip):
    problem = Case("single", 1, 2, "fp16" if "overflow" in name else "fp32", name).problem
    run, average = Recurrence(problem).run(), problem.workload.average
    decides = None if average.decay is None else get_ema_multi_avg_fn(float(average.decay))
    model = torch.nn.Linear(problem.workload.model.features, 1)
    averaged, stepped = AveragedModel(model, multi_avg_fn=decides), {step.window: step.weights for step in run.steps}
    for window, box in averages(problem, run, Averaging(on_skip=on_skip)).items():
        if window in stepped:
            values = torch.tensor([float(value) for value in stepped[window].center])
            torch.nn.utils.vector_to_parameters(values, model.parameters())
        if window in stepped or on_skip:
            averaged.update_parameters(model)
        found = torch.nn.utils.parameters_to_vector(averaged.module.parameters()).tolist()
        assert box.holds([Fraction(value) for value in found])
