"""What happens between steps and should not be in them: other backward passes, and steps before a backward pass."""

from contextlib import nullcontext, suppress

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import conformance
from conformance.watch import records
from conformance.watch.judging.conservation import LATE
from conformance.watch.judging.leftovers import LEFT
from conformance.watch.verdict import verdict

from .scripts import Script, total

TRAIN, PROBE = 1, 2


@pytest.mark.parametrize(
    ("windows", "is_open"),
    [
        ([[TRAIN, TRAIN]] * 5 + [[PROBE, TRAIN, TRAIN]] + [[TRAIN, TRAIN]] * 5, True),
        ([[PROBE, TRAIN]] + [[TRAIN]] * 3, True),
        ([[TRAIN]] * 3 + [[TRAIN, PROBE]] + [[TRAIN]] * 3, False),  # a penalty after its loss
        ([[TRAIN]] * 5 + [[PROBE, TRAIN]] * 4, False),  # a term that begins later
        ([[TRAIN]] + [[PROBE, TRAIN]] * 4, True),  # each step leaves something for the next one
        ([[TRAIN, TRAIN]] + [[PROBE, TRAIN]] * 4, True),
        ([[PROBE, TRAIN]] * 5, False),
        ([[PROBE]] + [[TRAIN]] * 5, False),
    ],
)
def test_a_backward_pass_in_another_line(windows, is_open):
    script = Script(ranks=1)
    for window in windows:
        computed = []
        for line in window:
            computed += script.backward()
            made = [one for one in script.streams[0] if isinstance(one, records.Backward)]
            made[-1].calls = line
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert (LEFT in findings.open) == is_open
    assert (verdict(findings) == "UNDECIDED") == is_open


def measured(model, batch, optimizer):
    loss = model(batch).square().mean()
    loss.backward()
    model(batch)
    optimizer.step()


def ahead(model, batch, optimizer):
    loss = model(batch).square().mean()
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()


def kept():
    return saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


@pytest.mark.parametrize(("train", "within", "is_late"), [(measured, nullcontext, False), (ahead, kept, True)])
def test_a_step_between_a_forward_and_its_backward_pass(train, within, is_late):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), within(), conformance.watching() as findings:
        model(torch.randn(8, 6)).square().mean().backward()
        for _ in range(4):
            train(model, torch.randn(8, 6), optimizer)
        optimizer.step()
    assert (LATE in findings.open) == is_late
