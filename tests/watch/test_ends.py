"""What shows when a script has ended, each beside a right script that looks much like it."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total

OTHER_LINE = ["train.py", 70, "main"]


def laws(script):
    return {law for law, _ in script.findings().causes}


@pytest.mark.parametrize(
    ("schedules", "moves", "expected"),
    [
        (True, False, True),
        (False, False, False),  # gradients for their own sake
        (True, True, False),  # by hand
    ],
)
def test_an_optimizer_that_never_steps(schedules, moves, expected):
    script = Script(ranks=1)
    for number in range(5):
        script.backward()
        if schedules:
            script.each(records.Scheduled(0, "StepLR", [0.1], [0.1], LINE))
        script.each(records.Cleared(script.numbers, script.steps, LINE, moved=moves or number == 0))
    assert ("watch/used" in laws(script)) == expected


def without(script, site=LINE):
    script.each(
        records.Stepped(0, "SGD", [0.1], script.numbers, [], False, None, False, False, "float32", [], [], [], [], site)
    )


@pytest.mark.parametrize(
    ("site", "left", "expected"),
    [
        (LINE, 2, {"watch/used"}),
        (OTHER_LINE, 2, set()),  # to have an optimizer's state
        (LINE, 1, set()),  # less than a window
        (LINE, 0, set()),
    ],
)
def test_steps_that_come_before_the_backward_pass_of_their_window(site, left, expected):
    script = Script(ranks=1)
    without(script, site)
    for _ in range(4):
        script.step([total([*script.backward(), *script.backward()])])
        script.clear()
    for _ in range(left):
        script.backward()
    assert laws(script) == expected


@pytest.mark.parametrize(
    ("later", "finite", "clears", "expected"),
    [
        (3, True, False, {"watch/cleared"}),
        (2, True, False, set()),  # of the same window
        (3, False, False, set()),  # the scale goes down
        (3, True, True, set()),
    ],
)
def test_gradients_that_overflowed_and_were_never_cleared(later, finite, clears, expected):
    script = Script(ranks=1)
    script.step(script.backward())
    script.clear()
    script.backward(scale=float("inf"))
    for _ in range(later):
        if clears:
            script.clear()
        script.backward(scale=1.0 if finite else float("inf"))
    assert laws(script) & {"watch/cleared"} == expected


@pytest.mark.parametrize(
    ("change", "forwards", "expected"),
    [
        (0.0, False, {"watch/backward-once"}),
        (1e-3, False, set()),  # another loss of the same forward
        (0.0, True, set()),  # of equal batches
    ],
)
def test_one_loss_that_goes_backward_twice(change, forwards, expected):
    script = Script(ranks=1)
    for _ in range(3):
        script.each(records.Entered([1], False, LINE))
        computed = script.backward()
        if forwards:
            script.each(records.Entered([1], False, LINE))
        script.backwards -= 1
        computed += script.backward(scale=1 + change)
        for record in script.streams[0][-2:]:
            record.backward += 1000
        script.step([total(computed)])
        script.clear()
    assert laws(script) & {"watch/backward-once"} == expected


@pytest.mark.parametrize(
    ("batches", "divisor", "loader", "passes", "expected"),
    [
        (3, 3, 7, 1, {"watch/every-backward"}),
        (3, 1, 7, 1, set()),  # one batch of three
        (2, 2, 7, 1, set()),  # half of a loss
        (3, 3, None, 1, set()),  # of several loaders
        (1, 3, 7, 3, set()),
    ],
)
def test_the_last_loss_of_a_window_alone_goes_backward(batches, divisor, loader, passes, expected):
    script = Script(ranks=1)
    for _ in range(4):
        computed = []
        for _ in range(passes):
            computed += script.backward(factors=[1 / divisor] if divisor > 1 else [], targets=8)
            backward = script.streams[0][-2]
            backward.loader, backward.batches = loader, batches
            backward.divisors = [float(divisor)] if divisor > 1 else []
        script.step([total(computed)])
        script.clear()
    assert laws(script) == expected
