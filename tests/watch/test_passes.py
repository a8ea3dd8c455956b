"""The backward passes of a window: one loss twice, unscaling between them, and passes of another line."""

from contextlib import suppress

import pytest
import torch
from torch import nn

import conformance
from conformance.watch import records

from .scripts import LINE, Script, total

DATA = torch.arange(96.0).reshape(32, 3).cos()
TRAIN, PROBE = 1, 2
AGAIN, SAME, OTHER = "watch/backward-once", "micro-batches.same-gradient", "clearing.other-passes"


def found(findings):
    """The laws that are broken, and the facts about passes of a window."""
    return {law for law, _ in findings.causes} | findings.open.keys() & {SAME, OTHER}


def watched(run):
    torch.manual_seed(0)
    with suppress(AssertionError), conformance.watching() as findings:
        run()
    return findings


def parts(model):
    return [model(DATA[start : start + 8]).square().mean() for start in range(0, 32, 8)]


def of_losses(function):
    """Each loss goes backward, and then some function of them."""

    def window(model):
        losses = parts(model)
        for loss in losses:
            loss.backward(retain_graph=True)
        function(losses).backward()

    return window


def looks_first(clears):
    """The gradient of a part of the loss is looked at before all of it goes backward."""

    def window(model):
        first, *others = parts(model)
        first.backward(retain_graph=True)
        for parameter in model.parameters() if clears else ():
            parameter.grad.data.zero_()
        (first + sum(others)).backward()

    return window


def of_one_forward(*losses):
    def window(model):
        outputs = model(DATA)
        for loss in losses:
            loss(outputs).backward(retain_graph=True)

    return window


def across(turn):
    def loss(outputs):
        return nn.functional.cross_entropy(turn(outputs @ outputs.T / 8), torch.arange(32)) / 2

    return loss


def with_vectors(model):
    outputs = model(DATA)
    for vector in (DATA[:, :1], DATA[:, 1:2]):
        outputs.backward(vector.expand_as(outputs), retain_graph=True)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (looks_first(clears=False), {AGAIN}),
        (looks_first(clears=True), set()),
        (of_losses(lambda losses: sum(losses) / 4), {AGAIN}),
        (of_losses(lambda losses: torch.stack(losses).var()), set()),
        (of_losses(lambda losses: losses[0] ** 2), set()),
        (of_one_forward(across(torch.clone), across(torch.clone)), {SAME}),
        (of_one_forward(across(torch.clone), across(torch.t)), set()),
        (with_vectors, set()),
    ],
)
def test_one_loss_twice(window, expected):
    def run():
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            window(model)
            optimizer.step()

    assert found(watched(run)) == expected


def test_unscaling_between_two_passes():
    script = Script(ranks=1)
    first = script.backward(scale=1024.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    script.step([total([*first, *script.backward(scale=1024.0), *script.backward(scale=1024.0)])])
    effects = {law: cause.first.effect for (law, _), cause in script.findings().causes.items()}
    assert effects["watch/unscale-whole-window"].values == {"passes": 2, "all": 3, "scale": 1024.0}


@pytest.mark.parametrize(
    ("windows", "count"),
    [
        ([[TRAIN, TRAIN]] * 5 + [[PROBE, TRAIN, TRAIN]] + [[TRAIN, TRAIN]] * 5, 1),
        ([[PROBE, TRAIN]] + [[TRAIN]] * 3, 1),
        ([[TRAIN]] * 5 + [[PROBE, TRAIN]] * 4, 4),
        ([[TRAIN]] + [[PROBE, TRAIN]] * 4, 4),  # each step leaves something for the next one
        ([[TRAIN, TRAIN]] + [[PROBE, TRAIN]] * 4, 4),
        ([[TRAIN]] * 3 + [[TRAIN, TRAIN]] * 2, 2),  # of steps that are left out
        ([[TRAIN, TRAIN]] * 3 + [[TRAIN]], 0),
        ([[TRAIN]] * 3 + [[TRAIN, PROBE]] + [[TRAIN]] * 3, 0),  # a penalty after its loss
        ([[PROBE, TRAIN]] * 5, 0),
        ([[PROBE]] + [[TRAIN]] * 5, 0),
    ],
)
def test_a_backward_pass_of_another_line(windows, count):
    script = Script(ranks=1)
    for window in windows:
        computed = []
        for line in window:
            computed += script.backward()
            script.streams[0][-2].calls = line
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert found(findings) == ({OTHER} if count else set())
    assert not count or findings.open[OTHER].says.values["count"] == count


@pytest.mark.parametrize(
    ("evaluations", "moves", "of", "expected"),
    [
        ((0, 1, 0, 1, 0), False, None, {OTHER}),
        ((0, 0, 1, 0, 0), True, None, {OTHER}),
        ((0, 1, 1, 1, 1), True, None, {OTHER}),
        ((1, 1, 1, 1, 1), True, None, set()),
        ((0, 1, 0, 1, 0), True, None, {"watch/cleared"}),
        ((0, 1, 0, 1, 0), False, -1, {"watch/cleared"}),
        ((0, 1, 0, 1, 0), False, 0, {OTHER}),  # of what this window trains on
    ],
)
def test_an_evaluation_before_a_step(evaluations, moves, of, expected):
    """moves: whether the evaluation is at other weights. of: the window that trains on its samples, from this one."""
    script = Script(ranks=1)
    for number, is_evaluated in enumerate(evaluations):
        computed = script.backward() if is_evaluated else []
        if is_evaluated:
            record = script.streams[0][-2]
            record.evaluates, record.versions = True, {"0": script.steps - moves}
            record.evaluated = [] if of is None else [number + of, 100 + number + of]
        script.each(records.Entered([number, 100 + number], False, LINE))
        script.step([total(computed + script.backward())])
        script.clear()
    assert found(script.findings()) == expected


@pytest.mark.parametrize(
    ("clears", "is_joint", "expected"), [(True, False, set()), (False, False, {OTHER}), (False, True, set())]
)
def test_a_pass_that_another_optimizer_has_stepped_on(clears, is_joint, expected):
    """A maker, whose loss goes through the critic, steps first. is_joint: the critic's loss goes through it, too."""

    def run():
        maker, critic = nn.Linear(2, 6), nn.Linear(6, 1)
        of_maker, of_critic = torch.optim.SGD(maker.parameters(), 0.01), torch.optim.SGD(critic.parameters(), 0.01)
        for _ in range(6):
            of_maker.zero_grad()
            of_critic.zero_grad()
            critic(maker(torch.randn(8, 2))).mean().backward()
            of_maker.step()
            if clears:
                of_critic.zero_grad()
            made = maker(torch.randn(8, 2))
            (critic(torch.randn(8, 6)) - critic(made if is_joint else made.detach())).mean().backward()
            of_critic.step()

    assert {OTHER} & found(watched(run)) == expected
