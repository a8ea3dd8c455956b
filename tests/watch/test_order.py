"""Calls that come at the wrong place of a window: each says in numbers what that does."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, gradients, total


def clipped(script, norm, limit=1.0, given=6):
    script.each(records.Clipped("norm", script.numbers, limit, norm, given, LINE))


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


def before_unscale(script):
    computed = script.backward(scale=1024.0)
    clipped(script, 512.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    stepped(script, computed)


def before_backward(script):
    clipped(script, 0.0)
    stepped(script, script.backward())


def of_nothing(script):
    computed = script.backward()
    clipped(script, 0.0, given=0)
    stepped(script, computed)


def schedule_first(script):
    computed = script.backward()
    script.each(records.Scheduled(0, "StepLR", [0.1], [0.01], LINE))
    stepped(script, computed)


NORM = sum(one.square().sum().item() for one in gradients(100)) ** 0.5


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
        # 1/512 is left, where a norm of 0.5 was to be left as it is.
        (
            before_unscale,
            {"watch/unscale-before-clip": "clipping leaves 0.00195 of what it should leave of the gradients"},
        ),
        (before_backward, {"watch/clip-something": f"is at least {NORM:.3g}, and the limit of the norm 1"}),
        (of_nothing, {"watch/clip-something": f"is at least {NORM:.3g}, and the limit of the norm 1"}),
        (schedule_first, {"watch/schedule-after-step": "the step's learning rate is 0.01 in place of 0.1"}),
    ],
)
def test_the_effect_is_in_numbers(happens, effects):
    script = Script(ranks=1)
    happens(script)
    found = {cause.first.law: cause.first.effect for cause in script.findings().causes.values()}
    assert all(text in found[law] for law, text in effects.items()), found
