"""Schedules that step too often or past their ends, parameters that stop, and limits that are not those of the step."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR

import conformance
from conformance.watch.verdict import verdict

STEPS = 40


def watched(window):
    """window: is given the number of the step, the model, its loss, the optimizer, and what makes a schedule once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = []

    def schedule(makes):
        schedules[:] = schedules or [makes(optimizer)]
        return schedules[0]

    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            window(step, model, optimizer, schedule)
    return findings


def falls(times, made_for=STEPS, fewer=0):
    """A rate that falls to 0, by a schedule that steps so many times a step, but for the last `fewer` ones."""

    def window(step, model, optimizer, schedule):
        schedule_ = schedule(lambda of: LinearLR(of, 1.0, 0.0, made_for))
        optimizer.step()
        for _ in range(times if step < STEPS - fewer else 0):
            schedule_.step()

    return window


@pytest.mark.parametrize(
    ("window", "broken", "expected"),
    [
        (falls(1), set(), "CONFORMS"),
        (falls(2), {"watch/schedule-after-step"}, "DOES NOT CONFORM"),
        (falls(1, made_for=STEPS // 2), set(), "UNDECIDED"),  # once a step, and zero from then on
        (falls(2, made_for=2 * STEPS), set(), "CONFORMS"),
    ],
)
def test_a_schedule_that_comes_to_its_end_long_before_the_training(window, broken, expected):
    findings = watched(window)
    assert ({law for law, _ in findings.causes}, verdict(findings)) == (broken, expected)


@pytest.mark.parametrize(("made_for", "is_told"), [(STEPS, False), (10, True)])
def test_a_cosine_that_goes_up_again(made_for, is_told):
    def window(step, model, optimizer, schedule):
        schedule_ = schedule(lambda of: CosineAnnealingLR(of, made_for))
        optimizer.step()
        schedule_.step()

    findings = watched(window)
    assert verdict(findings) == "CONFORMS"
    assert any("its rate goes up and down" in note for note in findings.notes) == is_told


@pytest.mark.parametrize(("divides_first", "expected"), [(True, "CONFORMS"), (False, "UNDECIDED")])
def test_gradients_are_clipped_before_they_are_divided(divides_first, expected):
    def window(step, model, optimizer, schedule):
        model(torch.randn(4, 6)).square().mean().backward()
        for clips in (not divides_first, divides_first):
            if clips:
                clip_grad_norm_(model.parameters(), 0.01)
            else:
                for parameter in model.parameters():
                    parameter.grad /= 2
        optimizer.step()

    findings = watched(window)
    assert (verdict(findings), {law for law, _ in findings.causes}) == (expected, set())
    assert all(reason.startswith("gradients were clipped, and then divided by 2") for reason in findings.open)
