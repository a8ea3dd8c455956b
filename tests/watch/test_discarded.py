"""Gradients that a script clears before a step uses them."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, sketches, total

OTHER_LINE = ["train.py", 70, "main"]


def laws(findings):
    return {law for law, _ in findings.causes}


def discarded(findings):
    fact = findings.open.get("clearing.discarded")
    return None if fact is None else tuple(fact.says.values[name] for name in ("passes", "windows", "steps"))


@pytest.mark.parametrize(
    ("lost", "rows", "loader", "expected", "counts"),
    [
        ((1, 1, 1, 1), "others", 7, {"watch/used"}, (4, 4, 4)),
        ((2, 0, 3, 1), "others", 7, set(), (6, 3, 4)),  # what looks wrong
        ((1, 1, 1, 1), "same", 7, set(), (4, 4, 4)),  # a probe
        ((1, 1, 1, 1), "others", None, set(), (4, 4, 4)),  # a memory
        ((0, 0, 1, 0), "others", 7, set(), (1, 1, 4)),
        ((0, 0, 0, 0), "others", 7, set(), None),
    ],
)
def test_passes_are_cleared_before_steps(lost, rows, loader, expected, counts):
    script = Script(ranks=1)
    for count in lost:
        for _ in range(count):
            script.each(records.Entered([script.steps if rows == "same" else -script.backwards], False, LINE))
            script.backward(loader=loader)
            script.clear()
        script.each(records.Entered([script.steps], False, LINE))
        script.step(script.backward(loader=7))
        script.clear()
    findings = script.findings()
    assert (laws(findings), discarded(findings)) == (expected, counts)


@pytest.mark.parametrize(
    ("divisor", "dropped", "batches", "expected"),
    [
        (4.0, (0, 0, 0, 0), 1, {"watch/used"}),
        (4.0, (1, 0, 2, 0), 1, {"watch/used"}),
        (3.0, (0, 0, 0, 0), 1, set()),
        (4.0, (0, 0, 0, 0), 2, set()),  # batches without a backward pass
    ],
)
def test_a_share_of_each_window_is_cleared(divisor, dropped, batches, expected):
    """The passes of each window until `dropped`, whose losses are divided by the number of all."""
    script = Script(ranks=1)
    for last in dropped:
        computed = []
        for place in range(4):
            computed += script.backward(factors=[1 / divisor], loader=7)
            script.streams[0][-2].divisors, script.streams[0][-2].batches = [divisor], batches
            if place == last:
                script.clear()
                computed = []
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert laws(findings) == expected
    assert discarded(findings) == (sum(dropped) + 4, 4, 4)


def of_another(script, number):
    """A step of an optimizer that has nothing to do with what is cleared."""
    script.each(records.Parameter(90 + number, [6, 5], "float32", 1, f"q{number}"))
    script.each(records.Optimizer(1 + number, "SGD", [90 + number]))
    gradient = sketches(script.backward()[0][:1])
    for stream in script.streams:
        stream[-1] = records.Local(script.backwards, [90 + number], [90 + number], "float32", gradient)
    script.each(
        records.Stepped(
            1 + number, "SGD", [0.1], [90 + number], [], False, None, False, False, "float32", [90 + number], gradient,
            [90 + number], gradient, LINE,
        )
    )  # fmt: skip


@pytest.mark.parametrize(("loses", "expected"), [(lambda step: True, {"watch/used"}), (lambda step: step == 2, set())])
def test_passes_are_cleared_before_the_steps_of_one_of_several_optimizers(loses, expected):
    script = Script(ranks=1)
    for step in range(6):
        if loses(step):
            script.backward(loader=7)
            script.clear()
        script.step(script.backward(loader=7))
        script.clear()
        for number in range(3):
            of_another(script, number)
    assert laws(script.findings()) == expected


@pytest.mark.parametrize(
    ("computes", "site", "expected"),
    [
        (True, OTHER_LINE, ("watch/used", OTHER_LINE)),
        (True, None, ("watch/has-gradient", LINE)),  # cleared by hand
        (False, OTHER_LINE, ("watch/has-gradient", LINE)),
    ],
)
def test_steps_without_gradients_that_were_cleared(computes, site, expected):
    script = Script(ranks=1)
    script.backward()
    script.each(records.Cleared(script.numbers, script.versions, None))
    for _ in range(4):
        if computes:
            script.backward()
        script.each(records.Cleared(script.numbers, script.versions, site))
        script.each(
            records.Stepped(
                0, "SGD", [0.1], script.numbers, [], False, None, False, False, "float32", [], [], [], [], LINE
            )
        )
    [cause] = script.findings().causes.values()
    assert (cause.first.law, cause.first.site) == expected
    assert (cause.count, cause.first.step) == (4, 0)


@pytest.mark.parametrize(
    ("schedules", "moves", "loads", "site", "first", "expected"),
    [
        (True, False, False, LINE, False, {"watch/used"}),
        (False, False, False, LINE, False, set()),  # gradients for their own sake
        (True, True, False, LINE, False, set()),  # steps by hand
        (True, False, False, None, False, set()),
        (True, False, True, LINE, False, set()),  # one checkpoint after the other
        (False, False, False, LINE, True, set()),  # a picture of the schedule
    ],
)
def test_an_optimizer_that_never_steps(schedules, moves, loads, site, first, expected):
    script = Script(ranks=1)
    schedule = records.Scheduled(0, "StepLR", [0.1], [0.1], LINE)
    for _ in range(5 if first else 0):
        script.each(schedule)
    for number in range(5):
        script.steps += loads
        script.backward()
        if schedules:
            script.each(schedule)
        script.each(records.Cleared(script.numbers, script.versions, site, moved=moves or number == 0))
    assert laws(script.findings()) == expected
