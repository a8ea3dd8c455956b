"""Steps within steps, and steps on zeros, as Horovod takes them."""

from contextlib import suppress

import torch

import conformance
from conformance.watch.recording.parameters import WHOLE_AT_FIRST
from conformance.watch.verdict import verdict


class Averaging(torch.optim.SGD):
    """Its step ends in that of its base, which has hooks of its own."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(1)
        return super().step(closure)


def watched(*, zeros_first=False, clears_late=False, steps=WHOLE_AT_FIRST + 4):
    torch.manual_seed(0)
    # Only once there is one, torch calls the hooks in the step of the base, too.
    torch.optim.SGD([torch.zeros(1)], 0.01)
    with suppress(AssertionError), conformance.watching() as findings:
        model = torch.nn.Linear(200, 100)
        optimizer = Averaging(model.parameters(), 0.01)
        if zeros_first:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(4, 200)).square().mean().backward()
            if clears_late:
                optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return findings


def test_a_step_in_a_step_ends_one_window():
    findings = watched()
    assert (verdict(findings), findings.conserved, findings.steps) == ("CONFORMS", 20, 20)


def test_a_first_step_on_zeros_makes_the_state_of_an_optimizer():
    findings = watched(zeros_first=True, steps=3)
    assert (verdict(findings), findings.conserved, findings.steps) == ("CONFORMS", 4, 4)


def test_a_later_step_on_zeros_is_open():
    findings = watched(clears_late=True, steps=3)
    assert (verdict(findings), findings.conserved, [*findings.open]) == ("UNDECIDED", 0, ["clearing.zeroed"])


class Around(torch.optim.Optimizer):
    """Its step is that of another optimizer, which may raise."""

    def __init__(self, inner):
        super().__init__([one for group in inner.param_groups for one in group["params"]], {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


class Raising(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyError("state")


def test_what_comes_after_a_step_within_a_step_that_raised_is_seen():
    model = torch.nn.Linear(20, 10)
    with suppress(AssertionError), conformance.watching() as findings:
        for kind in (torch.optim.SGD, Raising, torch.optim.SGD):
            optimizer = Around(kind(model.parameters(), 0.01))
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 20)).square().mean().backward()
                with suppress(KeyError):
                    optimizer.step()
    assert findings.steps == 6
