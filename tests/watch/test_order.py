"""Calls that come at the wrong place of a window: each says in numbers what that does."""

from contextlib import suppress

import pytest
import torch

import conformance
from conformance.watch import records

from .scripts import LINE, Script, total


def clipped(script, norm, limit=1.0, given=6):
    script.each(records.Clipped("norm", script.numbers, limit, norm, given, LINE, used_up=not given))


def stepped(script, *computed):
    script.step([total([of_rank for (of_rank,) in computed])])


def before_unscale(script):
    computed = script.backward(scale=1024.0)
    clipped(script, 512.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    stepped(script, computed)


def schedule_first(script):
    computed = script.backward()
    script.each(records.Scheduled(0, "StepLR", [0.1], [0.01], LINE))
    stepped(script, computed)


def loss(model):
    return model(torch.randn(8, 6)).square().mean()


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
        # 1/512 is left, where a norm of 0.5 was to be left as it is.
        (
            before_unscale,
            {"watch/unscale-before-clip": "clipping leaves 0.00195 of what it should leave of the gradients"},
        ),
        (schedule_first, {"watch/schedule-after-step": "the step's learning rate is 0.01 in place of 0.1"}),
    ],
)
def test_the_effect_is_in_numbers(happens, effects):
    script = Script(ranks=1)
    happens(script)
    found = {cause.first.law: cause.first.effect for cause in script.findings().causes.values()}
    assert all(text in found[law] for law, text in effects.items()), found
