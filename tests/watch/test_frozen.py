"""Parameters that are frozen between a forward and the backward pass: their hooks are called, and they get nothing."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

import conformance
from conformance.watch.verdict import verdict


def watched(*, freezes, zeros):
    """Two players, both of whose losses come from one forward. freezes: the other one, during a backward pass."""
    torch.manual_seed(0)
    players = (
        nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 7)),
        nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 1)),
    )
    optimizers = [torch.optim.SGD(player.parameters(), lr=0.01) for player in players]
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(8):
            judged = players[1](players[0](torch.randn(6, 5)))
            losses = softplus(-judged).mean(), softplus(judged).mean() + softplus(-players[1](torch.randn(6, 7))).mean()
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=not zeros)
            for number, loss in enumerate(losses):
                players[1 - number].requires_grad_(not freezes)
                loss.backward(retain_graph=True)
                players[1 - number].requires_grad_(True)
            own = torch.autograd.grad(losses[0], [*players[0].parameters()], retain_graph=True)
            is_own = all(torch.equal(one.grad, two) for one, two in zip(players[0].parameters(), own, strict=True))
            assert is_own == freezes
            for optimizer in optimizers:
                optimizer.step()
    return findings


@pytest.mark.parametrize("zeros", [True, False])
def test_a_frozen_player_gets_nothing(zeros):
    assert verdict(watched(freezes=True, zeros=zeros)) == "CONFORMS"


def test_one_that_is_not_frozen_gets_both():
    findings = watched(freezes=False, zeros=True)
    assert findings.conserved == findings.steps > 0
