"""What shows when a script has ended, each beside a right script that looks much like it."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, sketches, total

OTHER_LINE = ["train.py", 70, "main"]


def laws(script):
    return {law for law, _ in script.findings().causes}


@pytest.mark.parametrize(
    ("schedules", "moves", "loads", "site", "expected"),
    [
        (True, False, False, LINE, True),
        (False, False, False, LINE, False),  # gradients for their own sake
        (True, True, False, LINE, False),  # by hand
        (True, False, False, None, False),  # by hand, which does not show in the weights' versions
        (True, False, True, LINE, False),  # of one checkpoint after the other
    ],
)
def test_an_optimizer_that_never_steps(schedules, moves, loads, site, expected):
    script = Script(ranks=1)
    for number in range(5):
        script.steps += loads
        script.backward()
        if schedules:
            script.each(records.Scheduled(0, "StepLR", [0.1], [0.1], LINE))
        script.each(records.Cleared(script.numbers, script.versions, site, moved=moves or number == 0))
    assert ("watch/used" in laws(script)) == expected


def test_a_schedule_that_is_gone_through_first_is_one_to_look_at():
    script = Script(ranks=1)
    for _ in range(5):
        script.each(records.Scheduled(0, "StepLR", [0.1], [0.1], LINE))
    for number in range(5):
        script.backward()
        script.each(records.Cleared(script.numbers, {}, LINE, moved=number == 0))
    assert laws(script) == set()


def without(script, site=LINE):
    script.each(
        records.Stepped(0, "SGD", [0.1], script.numbers, [], False, None, False, False, "float32", [], [], [], [], site)
    )


@pytest.mark.parametrize(
    ("site", "left", "early", "calls", "expected"),
    [
        (LINE, 2, True, 0, {"watch/used"}),
        (OTHER_LINE, 2, True, 0, set()),  # to have an optimizer's state
        (LINE, 1, True, 0, set()),  # less than a window
        (LINE, 0, True, 0, set()),
        (LINE, 2, False, 0, set()),  # there were no data yet, and a `break` before the last step
        (LINE, 2, True, 9, set()),  # how long the gradient is at the end
    ],
)
def test_steps_that_come_before_the_backward_pass_of_their_window(site, left, early, calls, expected):
    script = Script(ranks=1)
    without(script, site)
    for _ in range(4):
        computed = [*script.backward(), *script.backward()]
        if early:
            script.each(records.Entered([1], False, LINE))
        script.step([total(computed)])
        script.clear()
    for _ in range(left):
        script.backward()
        script.streams[0][-2].calls = calls
    assert laws(script) == expected


@pytest.mark.parametrize(
    ("later", "finite", "clears", "calls", "expected"),
    [
        (3, True, False, 0, {"watch/cleared"}),
        (2, True, False, 0, set()),  # of the same window
        (3, False, False, 0, set()),  # the scale goes down
        (3, True, True, 0, set()),
        (3, True, False, 9, set()),  # what an input does to the model that was trained
    ],
)
def test_gradients_that_overflowed_and_were_never_cleared(later, finite, clears, calls, expected):
    script = Script(ranks=1)
    script.step(script.backward())
    script.clear()
    script.backward(scale=float("inf"))
    for _ in range(later):
        if clears:
            script.clear()
        script.backward(scale=1.0 if finite else float("inf"))
        script.streams[0][-2].calls = calls
    assert laws(script) & {"watch/cleared"} == expected


def test_what_overflows_on_the_way_to_another_model_that_goes_on():
    script = Script(ranks=1)
    script.each(records.Parameter(90, [6, 5], "float32", 1, "generator"))
    script.each(records.Optimizer(1, "Adam", [90]))
    script.step(script.backward())
    script.clear()
    script.backward(scale=float("inf"))
    for _ in range(5):
        computed = script.backward()
        gradient = sketches(computed[0][:1])
        script.each(records.Local(script.backwards, [90], [90], "float32", gradient))
        script.each(
            records.Stepped(
                1, "Adam", [0.1], [90], [], False, None, False, False, "float32", [90], gradient, [90], gradient, LINE
            )
        )
    assert laws(script) & {"watch/cleared"} == set()


@pytest.mark.parametrize(
    ("changes", "forwards", "alike", "expected"),
    [
        ((0.0, 0.0, 0.0), False, True, {"watch/backward-once"}),
        ((0.0, 1e-3, 0.0), False, True, set()),  # another loss of the same forward
        ((0.0, 0.0, 0.0), True, True, set()),  # of equal batches
        ((0.0, 0.0, 0.0), False, False, set()),  # of outputs the other way round
    ],
)
def test_one_loss_that_goes_backward_twice(changes, forwards, alike, expected):
    script = Script(ranks=1)
    for change in changes:
        script.each(records.Entered([1], False, LINE))
        computed = script.backward()
        if forwards:
            script.each(records.Entered([1], False, LINE))
        script.backwards -= 1
        computed += script.backward(scale=1 + change)
        for record in script.streams[0][-2:]:
            record.backward += 1000
        script.streams[0][-2].is_alike = alike
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
