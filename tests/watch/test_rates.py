"""Parameters that stop, and limits that are not those of the step."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import conformance

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


@pytest.mark.parametrize(
    ("since", "expected"), [(STEPS, []), (STEPS - 4, []), (10, [("coverage.no-more-gradient", 2, 4, 9)])]
)
def test_parameters_that_get_no_gradients_any_more(since, expected):
    def window(step, model, optimizer):
        if step >= since:
            for parameter in model[0].parameters():
                parameter.grad = None
        optimizer.step()

    facts = [one.says for one in watched(window).open.values()]
    assert [(one.code, one.values["count"], one.values["all"], one.values["step"]) for one in facts] == expected


@pytest.mark.parametrize("divides_first", [True, False])
def test_gradients_are_clipped_before_they_are_divided(divides_first):
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
    assert findings.causes == {}
    assert ("clipping.before-change" in findings.open) != divides_first
