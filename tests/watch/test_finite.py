"""Steps on gradients that are not finite, and trials that may diverge."""

from contextlib import suppress

import pytest
import torch

import conformance

DATA = torch.arange(24.0).reshape(8, 3).cos()
LAW, FACT = "watch/finite", "loss-scale.not-finite"


class Careful(torch.optim.Optimizer):
    """Leaves out gradients that are not finite."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.isfinite().all():
                parameter.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize(
    ("rates", "is_new", "growth", "kind", "expected"),
    [
        ((0.1, 0.1), False, 1.0, torch.optim.SGD, set()),
        ((1e8, 0.1), True, 1.0, torch.optim.SGD, {FACT}),
        ((0.1, 1e8), True, 1.0, torch.optim.SGD, {FACT}),
        ((1e8, 0.1), False, 1.0, torch.optim.SGD, {LAW}),  # the same model goes on
        ((1e8,), True, 1.0, torch.optim.SGD, {LAW}),
        ((1e8, 1e8), True, 1.0, torch.optim.SGD, {LAW}),
        ((1e8, 0.0, 0.1), False, 1.0, torch.optim.SGD, {FACT}),  # and the model is put back
        ((1e-3,), False, 8.0, torch.optim.SGD, {FACT}),  # a test of rates
        ((1e8,), False, 1.0, Careful, {FACT}),
    ],
)
def test_a_step_on_gradients_that_are_not_finite(rates, is_new, growth, kind, expected):
    """rates: of one optimizer after the other; 0 puts the model back. is_new: each trains a model of its own."""
    model = torch.nn.Linear(3, 8)
    with suppress(AssertionError), conformance.watching() as findings:
        for rate in rates:
            model = torch.nn.Linear(3, 8) if is_new else model
            if not rate:
                model.load_state_dict(torch.nn.Linear(3, 8).state_dict())
                continue
            optimizer = kind(model.parameters(), lr=rate)
            for step in range(24):
                optimizer.zero_grad()
                spoilt = float("inf") if kind is Careful and step == 3 else 1.0
                (spoilt * model(DATA).square().square().mean()).backward()
                optimizer.step()
                optimizer.param_groups[0]["lr"] *= growth
    laws = {cause.first.law for cause in findings.causes.values()}
    assert laws & {LAW} | findings.open.keys() & {FACT} == expected
