"""Parameters that stop, and limits that are not those of the step."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import conformance
from conformance.watch.verdict import verdict

STEPS = 40


def watched(window):
    """window: is given the number of the step, the model and the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            window(step, model, optimizer)
    return findings


@pytest.mark.parametrize(("since", "is_told"), [(STEPS, False), (STEPS - 4, False), (10, True)])
def test_parameters_that_get_no_gradients_any_more(since, is_told):
    def window(step, model, optimizer):
        if step >= since:
            for parameter in model[0].parameters():
                parameter.grad = None
        optimizer.step()

    said = f"2 of 4 parameters of an optimizer have no gradients any more after step {since - 1}"
    assert any(note.startswith(said) for note in watched(window).notes) == is_told


@pytest.mark.parametrize(("divides_first", "expected"), [(True, "CONFORMS"), (False, "UNDECIDED")])
def test_gradients_are_clipped_before_they_are_divided(divides_first, expected):
    def window(step, model, optimizer):
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
