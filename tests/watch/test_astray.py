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


def clips(of_copy=True, too=False, limit=0.1, like=network, scores=False):
    """of_copy: what is clipped is no model that trains. too: that is clipped, too. scores: the other has gradients."""

    def trains(steps):
        model = network()
        other = like()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).square().mean().backward()
            if scores:
                other(torch.randn(8, 6)).square().mean().backward()
            if of_copy:
                clip_grad_norm_(other.parameters(), limit)
            if too:
                clip_grad_norm_(model.parameters(), limit)
            optimizer.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (clips(), True),
        (clips(too=True), False),
        (clips(limit=float("inf")), False),  # the norm alone
        (clips(like=lambda: nn.Linear(6, 1)), False),  # another model, which this step does not train
        (clips(like=lambda: network().requires_grad_(False)), False),  # a teacher
        (clips(scores=True), False),  # another model, which is stepped by hand
    ],
)
def test_clipping_of_a_copy(trains, expected):
    assert ("watch/clip-something" in laws(trains)) == expected


def open_of(trains, steps=8):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(steps)
    return findings


def times(factor):
    def trains(steps):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(steps):
            optimizer.zero_grad()
            (factor(step) * model(torch.randn(8, 6)).square().mean()).backward()
            optimizer.step()

    return trains


@pytest.mark.parametrize(("factor", "expected"), [(lambda step: 0, True), (lambda step: step == 5, False)])
def test_gradients_that_are_always_zero(factor, expected):
    findings = open_of(times(factor))
    assert not findings.causes
    assert any("are zero in all steps" in why for why in findings.open) == expected


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
