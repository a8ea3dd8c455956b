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


def goes_on(where, first=0):
    """where: the place of the schedule in a step. first: so many steps of it before the training, as of one that goes
    on."""

    def trains(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for _ in range(first):
            schedule.step()
        for _ in range(steps):
            if where == "first":
                schedule.step()
            optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).square().mean()
            if where == "after the forward":
                schedule.step()
            loss.backward()
            optimizer.step()
            if where == "last":
                schedule.step()

    return trains


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (goes_on("first"), True),
        (goes_on("after the forward"), True),
        (goes_on("last"), False),
        (goes_on("last", first=1), False),
        (goes_on("last", first=4), False),
        (goes_on("first", first=4), False),
    ],
)
def test_the_first_rate_is_never_used(trains, expected):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(6)
    assert not findings.causes
    assert any("before the first step" in why for why in findings.open) == expected


def open_of(trains, steps=8):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(steps)
    return findings


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
def test_weights_that_the_script_changes_are_noted(takes_over):
    findings = open_of(averaged(takes_over))
    assert not findings.causes and not findings.open
    assert any("changes weights between steps" in what for what in findings.notes) == takes_over


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
    findings = open_of(trains)
    assert {law for law, _ in findings.causes} == expected
    assert not findings.open and not findings.notes


def unstepped(by_hand=False, at=None, anew=False):
    """by_hand: the rate is set so. at: the step after which the schedule steps. anew: a second schedule steps."""

    def trains(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        if anew:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
            if by_hand:
                optimizer.param_groups[0]["lr"] *= 0.5
            if anew or step == at:
                schedule.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "steps", "expected"),
    [
        (unstepped(), 6, True),
        (unstepped(), 2, False),  # too few to say
        (unstepped(by_hand=True), 6, False),
        (unstepped(at=5), 6, False),  # one of epochs
        (unstepped(anew=True), 6, False),
    ],
)
def test_a_schedule_that_never_steps(trains, steps, expected):
    findings = watched(trains, steps)
    said = [note for note in findings.notes if "never steps: the learning rate stays 0.25" in note]
    assert [note.partition(" ")[0] for note in said] == ["StepLR"] * expected
    assert not findings.causes
    assert not findings.open


@pytest.mark.parametrize(
    ("rates", "schedules", "is_open", "is_noted"),
    [
        ((0.0, 0.0), False, True, False),
        ((0.0, 0.1), False, False, True),
        ((0.1, 0.1), False, False, False),
        ((0.0, 0.0), True, False, False),  # a warm-up from 0
    ],
)
def test_rates_that_stay_zero(rates, schedules, is_open, is_noted):
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
    assert any("the learning rate is 0 in all steps" in why for why in findings.open) == is_open
    assert any("have a learning rate of 0" in note for note in findings.notes) == is_noted
