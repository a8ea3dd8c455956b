"""Clipping of gradients that no step uses, in place of those of the step, beside right scripts that look like it."""

from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.nn.utils import clip_grad_norm_

import conformance


def reasons(trains, steps=6, says="are cleared before a step uses them"):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains(steps)
    assert not findings.causes
    return [reason for reason in findings.open if says in reason]


def gan(of_critic=True, of_generator=False, limit=0.01, spares=lambda step: False):
    """What is clipped before the generator's step. spares: the steps in which nothing is."""

    def trains(steps):
        generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
        for_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
        for_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
        for step in range(steps):
            for_critic.zero_grad()
            loss = softplus(-critic(torch.randn(4, 2))) + softplus(critic(generator(torch.randn(4, 3)).detach()))
            loss.mean().backward()
            clip_grad_norm_(critic.parameters(), limit)
            for_critic.step()
            for_generator.zero_grad()
            softplus(-critic(generator(torch.randn(4, 3)))).mean().backward()
            if of_critic and not spares(step):
                clip_grad_norm_(critic.parameters(), limit)
            if of_generator:
                clip_grad_norm_(generator.parameters(), limit)
            for_generator.step()

    return trains


def two_backwards(by_hand):
    """by_hand: a model that is clipped beside the one that steps follows its gradients, without an optimizer."""

    def trains(steps):
        model, other = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(steps):
            (model(torch.randn(4, 3)) + other(torch.randn(4, 3))).square().mean().backward()
            clip_grad_norm_(other.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()
            if by_hand:
                with torch.no_grad():
                    for parameter in other.parameters():
                        parameter -= 0.1 * parameter.grad
            kept.zero_grad()

    return trains


def each_sample(steps):
    """Gradients are clipped sample by sample, and cleared, and their sum is used."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        total = [torch.zeros_like(one) for one in model.parameters()]
        for sample in torch.randn(4, 3):
            model(sample).square().sum().backward()
            clip_grad_norm_(model.parameters(), 0.01)
            for sum_, parameter in zip(total, model.parameters(), strict=True):
                sum_ += parameter.grad
            optimizer.zero_grad()
        for sum_, parameter in zip(total, model.parameters(), strict=True):
            parameter.grad = sum_
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (gan(), True),
        (two_backwards(by_hand=False), True),
        (gan(of_critic=False), False),
        (gan(of_critic=False, of_generator=True), False),
        (gan(of_generator=True), False),  # all models, in each step
        (gan(limit=1e9), False),  # the norm alone
        (gan(spares=lambda step: step > 1), False),  # twice
        (two_backwards(by_hand=True), False),
        (each_sample, False),
    ],
)
def test_clipping_in_place_of_what_steps(trains, expected):
    assert bool(reasons(trains)) == expected


@pytest.mark.parametrize(
    ("clips_old", "limit", "expected"), [(True, 0.01, True), (True, 1e9, False), (False, 0.01, False)]
)
def test_clipping_of_a_model_that_another_one_has_taken_the_place_of(clips_old, limit, expected):
    def trains(steps):
        old = model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2 * steps):
            if step == steps:
                model = deepcopy(old)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            clip_grad_norm_((old if clips_old else model).parameters(), limit)
            optimizer.step()

    assert bool(reasons(trains, says="are left from before")) == expected
