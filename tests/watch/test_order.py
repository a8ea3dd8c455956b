"""Calls that come at the wrong place of a window: each says in numbers what that does."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch import records
from conformance.watch.verdict import verdict

from .scripts import LINE, Script, gradients, total


def clipped(script, norm, limit=1.0, given=6):
    script.each(records.Clipped("norm", script.numbers, limit, norm, given, LINE, used_up=not given))


def stepped(script, *computed):
    script.step([total([of_rank for (of_rank,) in computed])])


def clipped_between_two(script):
    [first] = script.backward()
    clipped(script, 2.0)
    stepped(script, [total([first], 1 / (2.0 + 1e-6))], script.backward(), script.backward())


def unscaled_between_two(script):
    first = script.backward(scale=1024.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    stepped(script, first, script.backward(scale=1024.0), script.backward(scale=1024.0))


def before_backward(script):
    clipped(script, 0.0)
    stepped(script, script.backward())


def of_nothing(script):
    computed = script.backward()
    clipped(script, 0.0, given=0)
    stepped(script, computed)


NORM = sum(one.square().sum().item() for one in gradients(100)) ** 0.5


def kept_and_clipped(model, optimizer):
    """A gradient that is put there by hand, and clipped before that of a penalty is added to it."""
    optimizer.zero_grad()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss(model), model.parameters()), strict=True
    ):
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    sum(parameter.square().sum() for parameter in model.parameters()).backward()


def received_and_clipped(model, optimizer):
    optimizer.zero_grad()
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    loss(model).backward()


def clipped_and_cleared(model, optimizer):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.zero_grad()
    loss(model).backward()


def loss(model):
    return model(torch.randn(8, 6)).square().mean()


@pytest.mark.parametrize(
    ("computes", "expected"),
    [
        (kept_and_clipped, set()),
        (received_and_clipped, set()),
        (clipped_and_cleared, {"watch/clip-something"}),
    ],
)
def test_what_is_clipped_before_a_backward_pass(computes, expected):
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(AssertionError), conformance.watching() as findings:
        for _ in range(3):
            computes(model, optimizer)
            optimizer.step()
    assert {cause.first.law for cause in findings.causes.values()} == expected


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        (lambda model, used_up: [model.parameters(), torch.nn.Identity().parameters()], "CONFORMS"),
        (lambda model, used_up: [[one for one in model.parameters() if not one.requires_grad]], "UNDECIDED"),  # as yet
        (lambda model, used_up: [iter([])], "UNDECIDED"),
        (lambda model, used_up: [filter(lambda one: not one.requires_grad, model.parameters())], "UNDECIDED"),
        (lambda model, used_up: [filter(lambda one: one.requires_grad, model.parameters())], "CONFORMS"),
        (lambda model, used_up: [used_up], "DOES NOT CONFORM"),
        (lambda model, used_up: [filter(torch.is_tensor, used_up)], "DOES NOT CONFORM"),
        (lambda model, used_up: [map(torch.Tensor.requires_grad_, used_up)], "DOES NOT CONFORM"),
    ],
)
def test_clipping_may_be_given_nothing(clips, expected):
    """A part of a model may have no parameters, or none that are trained yet; who used it up meant to give it some."""
    with suppress(AssertionError), conformance.watching() as findings:
        model = torch.nn.Linear(6, 5)
        used_up = model.parameters()
        optimizer = torch.optim.SGD(used_up, lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model).backward()
            for parameters in clips(model, used_up):
                torch.nn.utils.clip_grad_norm_(parameters, 1e-3)
            optimizer.step()
    assert verdict(findings) == expected


@pytest.mark.parametrize(("clips", "is_told"), [((0, 1), False), ((0,), True), ((), False)])
def test_clipping_that_leaves_some_parameters_out(clips, is_told):
    with conformance.watching() as findings:
        model = torch.nn.Linear(6, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss(model).backward()
            for number in clips:
                torch.nn.utils.clip_grad_norm_([*model.parameters()][number], 1e-3)
            optimizer.step()
    assert any("1 of 2 parameters are clipped" in note for note in findings.notes) == is_told


@pytest.mark.parametrize(("argument", "expected"), [((), {"watch/schedule-after-step"}), ((0.5,), set())])
def test_a_schedule_that_is_told_where_the_training_is(argument, expected):
    """Its rate is that of this place, whenever it is told."""
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
    with suppress(AssertionError), conformance.watching() as findings:
        loss(model).backward()
        schedule.step(*argument)
        optimizer.step()
    assert {cause.first.law for cause in findings.causes.values()} == expected


@pytest.mark.parametrize(
    ("happens", "effects"),
    [
        (
            clipped_between_two,
            {"watch/clip-whole-window": "the gradients of 2 of 3 backward passes are not clipped"},
        ),
        (
            unscaled_between_two,
            {"watch/unscale-whole-window": "the gradients of 2 of 3 backward passes are not divided by 1024"},
        ),
        (before_backward, {"watch/clip-something": f"is at least {NORM:.3g}, and the limit of the norm 1"}),
        (of_nothing, {"watch/clip-something": f"is at least {NORM:.3g}, and the limit of the norm 1"}),
    ],
)
def test_the_effect_is_in_numbers(happens, effects):
    script = Script(ranks=1)
    happens(script)
    found = {cause.first.law: cause.first.effect for cause in script.findings().causes.values()}
    assert all(text in found[law] for law, text in effects.items()), found
