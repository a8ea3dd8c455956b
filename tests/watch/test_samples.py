"""A large parameter is read as a whole in its first windows, and then sample by sample."""

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from conformance.watch.recording.parameters import AT_ONCE, WHOLE_AT_FIRST
from conformance.watch.sizes import samples
from conformance.watch.verdict import verdict

from .trained import watched

SAMPLES = samples(44 * 1024)
STEPS = WHOLE_AT_FIRST + 2 * SAMPLES


def train(*, steps=STEPS, spoil=lambda step, gradient: None, clears=lambda step: True, to_none=True):
    model = torch.nn.Sequential(torch.nn.Linear(20, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 44))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        for _ in range(2):
            (model(torch.randn(4, 20)).square().mean() / 2).backward()
        spoil(step, model[2].weight.grad)
        optimizer.step()
        if clears(step):
            optimizer.zero_grad(set_to_none=to_none)


def causes_of(**options):
    return {(law, cause.first.step) for (law, *_), cause in watched(train, **options).causes.items()}


@pytest.mark.parametrize("to_none", [True, False])
def test_a_correct_loop_conforms_in_all_steps(to_none):
    findings = watched(train, to_none=to_none)
    assert (verdict(findings), findings.conserved, findings.steps) == ("CONFORMS", STEPS, STEPS)


@pytest.mark.parametrize("step", [0, WHOLE_AT_FIRST - 1, WHOLE_AT_FIRST, WHOLE_AT_FIRST + 5])
def test_old_gradients_are_found_in_any_window(step):
    assert causes_of(clears=lambda at: at != step, steps=step + 3) == {("watch/cleared", step + 1)}


def test_a_step_without_a_backward_is_found_late_too():
    def spoil(step, gradient):
        if step == WHOLE_AT_FIRST + 3:
            optimizers[0].step()

    optimizers = []

    def register(optimizer, args, kwargs):
        optimizers[:] = [optimizer]

    handle = register_optimizer_step_pre_hook(register)
    try:
        assert causes_of(spoil=spoil, steps=WHOLE_AT_FIRST + 6) == {("watch/fresh", WHOLE_AT_FIRST + 4)}
    finally:
        handle.remove()


@pytest.mark.parametrize("place", [0, 17_000, 45_055])
def test_a_fault_in_a_few_elements_is_seen_once_their_sample_comes(place):
    """From a late step on, one element is wrong. Samples overlap in some blocks."""

    def spoil(step, gradient):
        if step >= WHOLE_AT_FIRST:
            gradient.view(-1)[place] += gradient.norm()

    findings = watched(train, spoil=spoil)
    assert verdict(findings) != "CONFORMS"
    assert findings.steps - findings.conserved in (2, 3, 4)


PARAMETERS = 3 * AT_ONCE
TURNS = PARAMETERS // AT_ONCE


def train_many(
    *, steps=WHOLE_AT_FIRST + 3 * TURNS, reaches=lambda step: range(PARAMETERS), spoil=lambda step, all: None
):
    parameters = [torch.nn.Parameter(torch.randn(6)) for _ in range(PARAMETERS)]
    optimizer = torch.optim.SGD(parameters, 0.01)
    for step in range(steps):
        for half in range(2):
            reached = [parameters[number] for number in reaches(step) if half == 0 or number % 2]
            (sum((one * torch.randn(6)).sum() for one in reached) / 2).backward()
        spoil(step, parameters)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    "reaches",
    [
        lambda step: range(PARAMETERS),
        # Experts: most windows reach few of them, some reach none whose turn it is.
        lambda step: range(step % 5, PARAMETERS, 5),
        lambda step: [step % PARAMETERS, (step + 1) % PARAMETERS],
    ],
)
def test_each_of_many_parameters_gets_a_turn(reaches):
    findings = watched(train_many, reaches=reaches)
    assert verdict(findings) == "CONFORMS"
    # A step counts if it is the turn of any parameter with a gradient.
    assert findings.conserved == findings.steps > WHOLE_AT_FIRST + TURNS


def test_a_fault_in_one_of_many_parameters_shows_when_it_is_its_turn():
    def spoil(step, parameters):
        if step >= WHOLE_AT_FIRST:
            parameters[7].grad *= 2

    findings = watched(train_many, spoil=spoil)
    assert verdict(findings) != "CONFORMS"
    assert findings.steps - findings.conserved == 3
