"""What a step adds up by mistake: a pass of another model's loss, a batch that was to be left out; or never uses."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import conformance


def open_of(trains):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        trains()
    assert not findings.causes
    return [*findings.open]


def adversarial(clears, is_joint=False):
    """A maker, whose loss goes through the critic, is stepped first. clears: the critic's gradients then. is_joint: its
    own loss goes through the maker, too."""

    def trains():
        maker, critic = nn.Linear(2, 6), nn.Linear(6, 1)
        of_maker, of_critic = torch.optim.SGD(maker.parameters(), 0.01), torch.optim.SGD(critic.parameters(), 0.01)
        for _ in range(12):
            of_maker.zero_grad()
            of_critic.zero_grad()
            critic(maker(torch.randn(8, 2))).mean().backward()
            of_maker.step()
            if clears:
                of_critic.zero_grad()
            made = maker(torch.randn(8, 2))
            (critic(torch.randn(8, 6)) - critic(made if is_joint else made.detach())).mean().backward()
            of_critic.step()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [(adversarial(True), False), (adversarial(False), True), (adversarial(False, is_joint=True), False)],
)
def test_a_pass_that_another_optimizer_has_stepped_on(trains, expected):
    assert any("another optimizer has stepped on before" in why for why in open_of(trains)) == expected


def skipping(clears):
    """Batches whose loss is too large are left out. clears: their gradients, too."""

    def trains():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(30):
            loss = mse_loss(model(torch.randn(8, 6)), (100.0 if step % 9 == 5 else 1.0) * torch.randn(8, 1))
            loss.backward()
            if loss > 100:
                if clears:
                    optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()

    return trains


def windows(*lengths):
    def trains():
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for length in lengths:
            for _ in range(length):
                (model(torch.randn(8, 6)).square().mean() / length).backward()
            optimizer.step()
            optimizer.zero_grad()

    return trains


@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (skipping(True), False),
        (skipping(False), True),
        (windows(1, 1, 1, 1, 1, 1, 2, 2), False),  # which are divided
        (windows(2, 2, 2, 2, 1), False),
    ],
)
def test_what_a_left_out_step_has_left(trains, expected):
    assert any("where a step is left out" in why for why in open_of(trains)) == expected
