"""What shows when a script has ended, each beside a right script that looks much like it."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total


@pytest.mark.parametrize(
    ("changes", "forwards", "alike", "count"),
    [
        ((0.0, 0.0, 0.0), False, True, 3),
        ((0.0, 1e-3, 0.0), False, True, 2),  # another loss of the same forward
        ((0.0, 0.0, 0.0), True, True, 0),  # of equal batches
        ((0.0, 0.0, 0.0), False, False, 0),  # of outputs the other way round
    ],
)
def test_one_loss_that_goes_backward_twice(changes, forwards, alike, count):
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
    fact = script.findings().open.get("micro-batches.same-gradient")
    assert (fact.count if fact else 0) == count


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
    assert {law for law, _ in script.findings().causes} == expected
