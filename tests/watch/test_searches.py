"""Steps along a gradient that a step has used before: a search along a line goes back between them, two optimizers may
share one gradient, and else it is wrong."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import Script, total

DATA = torch.arange(96.0).reshape(32, 3).cos()


def watched(train):
    torch.manual_seed(0)
    try:
        with conformance.watching() as findings:
            train(torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)))
    except AssertionError:
        pass
    return {cause.first.law for cause in findings.causes.values()} or verdict(findings)


def loss(model, step=0):
    return model(DATA[step:]).square().mean()


def searches(goes_back):
    """Two steps along each gradient."""

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            loss(model, step).backward()
            before = [parameter.data.clone() for parameter in model.parameters()]
            optimizer.step()
            if goes_back:
                for parameter, was in zip(model.parameters(), before, strict=True):
                    parameter.data.copy_(was)
            optimizer.step()

    return train


def puts_back(model):
    """Goes backward again at the new weights, and back with the gradients that it has kept where that is no better."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        optimizer.zero_grad()
        loss(model, step).backward()
        kept = [(parameter.data.clone(), parameter.grad.clone()) for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        loss(model, step).backward()
        if step % 2:
            for parameter, (was, gradient) in zip(model.parameters(), kept, strict=True):
                parameter.data.copy_(was)
                parameter.grad.copy_(gradient)
            optimizer.step()


def in_turns(second):
    """Two optimizers step after each backward pass; the second one has these parameters."""

    def train(model):
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(second(model).parameters())]
        for step in range(5):
            model.zero_grad()
            loss(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()

    return train


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (searches(goes_back=True), "UNDECIDED"),
        (searches(goes_back=False), {"watch/fresh"}),
        (puts_back, "UNDECIDED"),
        (in_turns(lambda model: model), "UNDECIDED"),
        (in_turns(lambda model: model[2]), {"watch/fresh"}),
    ],
)
def test_a_gradient_is_used_twice(train, expected):
    assert watched(train) == expected


class Careful(torch.optim.Optimizer):
    """Leaves out gradients that are not finite."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad.isfinite().all():
                parameter.add_(parameter.grad, alpha=-0.1)


@pytest.mark.parametrize(
    ("kind", "expected"), [(Careful, "UNDECIDED"), (lambda held: torch.optim.SGD(held, lr=0.1), {"watch/finite"})]
)
def test_an_optimizer_of_the_script_s_own_may_leave_out_what_is_not_finite(kind, expected):
    def train(model):
        optimizer = kind(model.parameters())
        for step in range(4):
            optimizer.zero_grad()
            (loss(model, step) * (float("inf") if step == 3 else 1.0)).backward()
            optimizer.step()

    assert watched(train) == expected


@pytest.mark.parametrize(("is_elsewhere", "expected"), [(True, "UNDECIDED"), (False, "DOES NOT CONFORM")])
def test_ranks_that_change_their_weights_between_steps_may_meet(is_elsewhere, expected):
    """As they do who average some of the weights now and then, or go halfway to those of a neighbour."""
    script = Script(drift=0.1)
    for window in range(5):
        script.step(script.backward())
        for stream in script.streams:
            assert isinstance(stream[-1], records.Stepped)
            stream[-1].is_elsewhere = is_elsewhere and window % 2 == 1
        script.clear()
    assert verdict(script.findings()) == expected


@pytest.mark.parametrize("of", [(), (0,), (0, 1)])
def test_weights_that_one_of_several_ranks_changes_are_noted(of):
    script = Script()
    for step in range(4):
        script.step([total(script.backward(), 0.5)] * 2)
        for rank in of if step == 2 else ():
            script.streams[rank][-1].is_elsewhere = True
        script.clear()
    findings = script.findings()
    assert not findings.causes and not findings.open
    assert any("changes weights between steps" in what for what in findings.notes) == bool(of)


def test_a_test_of_rates_may_diverge():
    """Its rate grows with each step, so far that no warm-up does."""
    model = torch.nn.Linear(3, 8)
    with suppress(AssertionError), conformance.watching() as findings:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(24):
            optimizer.zero_grad()
            model(torch.arange(24.0).reshape(8, 3).cos()).square().square().mean().backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 8
    assert verdict(findings) == "UNDECIDED"


@pytest.mark.parametrize(
    ("rates", "is_new", "expected"),
    [
        ((1e8, 0.1), True, "UNDECIDED"),
        ((0.1, 1e8), True, "UNDECIDED"),
        ((1e8, 0.1), False, {"watch/finite"}),  # the same model goes on
        ((1e8,), True, {"watch/finite"}),
        ((1e8, 1e8), True, {"watch/finite"}),
        ((1e8, 0.0, 0.1), False, "UNDECIDED"),  # a test of rates, after which the model is put back
    ],
)
def test_a_trial_may_diverge(rates, is_new, expected):
    def run():
        model = torch.nn.Linear(3, 8)
        for rate in rates:
            model = torch.nn.Linear(3, 8) if is_new else model
            if not rate:
                model.load_state_dict(torch.nn.Linear(3, 8).state_dict())
                continue
            optimizer = torch.optim.SGD(model.parameters(), lr=rate)
            for _ in range(16):
                optimizer.zero_grad()
                model(torch.arange(24.0).reshape(8, 3).cos()).square().square().mean().backward()
                optimizer.step()

    try:
        with conformance.watching() as findings:
            run()
    except AssertionError:
        pass
    assert ({cause.first.law for cause in findings.causes.values()} or verdict(findings)) == expected
