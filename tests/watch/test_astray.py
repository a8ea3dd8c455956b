"""Calls that no step has anything of, in small scripts, each beside right ones that look much like it."""

from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import conformance


def network():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def watched(trains, steps=6):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(steps)
    return findings


def laws(trains, steps=6):
    return {law for law, _ in watched(trains, steps).causes}


def schedules(again=True, gives=False, rate=0.1, steps_first=0, own=False):
    """again: the optimizer is made once more after the schedule. gives: its rate is set by hand. rate: of the second.
    steps_first: so many steps are the first one's. own: the second holds something else."""

    def trains(steps):
        model = network()
        first = optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
        if again:
            optimizer = torch.optim.SGD(model[2].parameters() if own else model.parameters(), lr=rate)
        for step in range(steps):
            stepped = first if step < steps_first else optimizer
            model.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            stepped.step()
            schedule.step()
            if gives:
                optimizer.param_groups[0]["lr"] = schedule.get_last_lr()[0]

    return trains


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (schedules(), True),
        (schedules(again=False), False),
        (schedules(gives=True), False),  # one that is kept for its schedule
        (schedules(rate=0.5), False),  # of another number, such as how much a term of the loss counts
        (schedules(steps_first=2), False),  # of a phase that is over
        (schedules(own=True), False),
    ],
)
def test_a_schedule_of_an_optimizer_that_was_made_again(trains, expected):
    assert ("watch/schedule-of-what-steps" in laws(trains)) == expected


def averaged(takes_over):
    def trains(steps):
        model = network()
        average = deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            was = deepcopy(model.state_dict())
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.data.lerp_(parameter.data, 0.1)
            if step == steps // 2:
                model.load_state_dict(average.state_dict())
                if not takes_over:
                    model.load_state_dict(was)

    return trains


@pytest.mark.parametrize("takes_over", [True, False])
def test_weights_that_the_script_changes(takes_over):
    findings = watched(averaged(takes_over), steps=8)
    assert not findings.causes
    assert {*findings.open} == ({"agreement.between"} if takes_over else set())


def gives_closures(clips_late=True, computes=False):
    """Each step gets a closure, as Lightning's do, whether or not there is something for it to compute."""

    def trains(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def backward():
            model(torch.randn(8, 6)).square().mean().backward()

        for _ in range(steps):
            optimizer.zero_grad()
            if not clips_late:
                clip_grad_norm_(model.parameters(), 1e-3)
            if not computes:
                backward()
            if clips_late and not computes:
                clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step(backward if computes else lambda: None)

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (gives_closures(), set()),
        (gives_closures(clips_late=False), {"watch/clip-something"}),
        (gives_closures(computes=True), set()),
    ],
)
def test_steps_with_closures(trains, expected):
    findings = watched(trains, steps=8)
    assert {law for law, _ in findings.causes} == expected
    assert not findings.open


def unstepped(by_hand=False, anew=False):
    """by_hand: the rate is set so. anew: a second schedule steps."""

    def trains(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        if anew:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if by_hand:
                optimizer.param_groups[0]["lr"] *= 0.5
            if anew:
                schedule.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"), [(unstepped(), True), (unstepped(by_hand=True), False), (unstepped(anew=True), False)]
)
def test_a_schedule_that_never_steps(trains, expected):
    findings = watched(trains)
    assert not findings.causes
    assert {*findings.open} == ({"schedule.never-steps"} if expected else set())


@pytest.mark.parametrize(
    ("rates", "schedules", "expected"),
    [
        ((0.0, 0.0), False, True),
        ((0.0, 0.1), False, True),
        ((0.1, 0.1), False, False),
        ((0.0, 0.0), True, False),  # a warm-up from 0
    ],
)
def test_rates_that_stay_zero(rates, schedules, expected):
    def trains(steps):
        model = network()
        groups = [{"params": model[place].parameters(), "lr": rate} for place, rate in zip((0, 2), rates, strict=True)]
        optimizer = torch.optim.SGD(groups)
        for step in range(steps):
            for group in optimizer.param_groups if schedules else ():
                group["lr"] = 0.01 * step
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()

    findings = watched(trains)
    assert not findings.causes
    assert ("schedule.zero-rate" in findings.open) == expected
