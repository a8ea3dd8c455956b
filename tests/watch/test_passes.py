"""Backward passes of a window: a loss that counts twice, passes of another line, passes cleared before a step."""

import pytest
import torch

from conformance.watch import records

from .scripts import LINE, SHAPES, Script, gradients, laws, sketches, stepped, total
from .trained import loss, network, watched

TRAIN, PROBE = 1, 2
AGAIN, OTHER = "watch/backward-once", "clearing.other-passes"


def found(findings):
    """The violated laws, and the facts about passes of a window."""
    return laws(findings) | findings.open.keys() & {OTHER}


def test_a_loss_that_goes_backward_again():
    """As a part of another one."""
    script = Script(ranks=1)
    computed = [*script.backward(), *script.backward()]
    script.streams[0][-2].contains = True
    script.step([total(computed)])
    assert laws(script.findings()) == {AGAIN}


@pytest.mark.parametrize(
    ("factor", "values", "alike", "expected"),
    [
        (1.0, (0.5, 0.5), True, {AGAIN}),
        (1.0, (0.5, 0.4), True, set()),  # other targets
        (1.0, (0.5, 0.5), False, set()),
        (0.5, (0.5, 0.5), True, set()),  # each counts half
    ],
)
def test_a_loss_that_is_computed_twice_from_the_same_outputs(factor, values, alike, expected):
    script = Script(ranks=1)
    computed = []
    for place, value in enumerate(values):
        computed += script.backward(factors=[factor], targets=8)
        script.streams[0][-2].value, script.streams[0][-2].is_alike = value, alike and place > 0
    script.step([total(computed)])
    assert laws(script.findings()) == expected


@pytest.mark.parametrize(
    ("factor", "again", "expected"),
    [
        (1.0, [], {"watch/cleared"}),
        (1.0, [4], {OTHER}),  # a second loss, from time to time
        (0.5, [], {OTHER}),  # a micro-batch of the first window
    ],
)
def test_a_backward_pass_before_the_first_window(factor, again, expected):
    script = Script(ranks=1)
    for step in range(6):
        computed = []
        for line in [1, 2] if step in (0, *again) else [2]:
            computed += script.backward(factors=[factor if step == 0 else 1.0], targets=8)
            script.streams[0][-2].calls = line
        script.step([total(computed)])
        script.clear()
    assert found(script.findings()) == expected


def test_unscaling_between_two_passes():
    script = Script(ranks=1)
    first = script.backward(scale=1024.0)
    script.each(records.Unscaled(0, 1024.0, LINE))
    script.step([total([*first, *script.backward(scale=1024.0), *script.backward(scale=1024.0)])])
    effects = {law: cause.first.effect for (law, _), cause in script.findings().causes.items()}
    assert effects["watch/unscale-whole-window"].values == {"passes": 2, "all": 3, "scale": 1024.0}


@pytest.mark.parametrize(
    ("passes", "changed", "hooks", "expected"),
    [
        (1, False, False, {"watch/cleared"}),
        (2, False, False, set()),  # the script may clear by hand between them
        (1, True, False, set()),
        (1, False, True, set()),  # hooks may store gradients elsewhere
    ],
)
def test_old_gradients_are_used_even_if_the_sum_is_changed(passes, changed, hooks, expected):
    """For example by adaptive clipping of each unit."""
    script, used = Script(ranks=1), []
    for step in range(4):
        if step:
            left = script.numbers, "float32", sketches(used)
            script.each(records.Left(script.numbers, *left, [], script.numbers * changed))
        for _ in range(passes):
            script.backward()
            if hooks:
                script.streams[0].insert(-1, records.Hooks(script.numbers, script.streams[0][-1].sketches))
        used = [one.clamp(-0.1, 0.2) for one in gradients(step)]
        script.step([used])
    assert laws(script.findings()) == expected


@pytest.mark.parametrize(("searches", "is_own", "expected"), [(1, 0, {"watch/cleared"}), (1, 1, set()), (0, 0, set())])
def test_a_closure_that_does_not_clear(searches, is_own, expected):
    script = Script(ranks=1)
    for _ in range(3):
        first = script.backward()
        script.steps += 1  # The search changes the weights.
        script.step([total([*first, *script.backward()])])
        script.streams[0][-1].closure, script.streams[0][-1].is_own = bool(searches), bool(is_own)
        script.clear()
    assert laws(script.findings()) == expected


@pytest.mark.parametrize("steps_between", [True, False])
def test_a_pass_that_another_optimizer_stepped_on(steps_between):
    """A loss of a discriminator that also reaches the generator, whose own pass goes through both."""
    script = Script(ranks=1)
    script.each(records.Optimizer(1, "SGD", script.numbers[3:]))
    stream, ours, others = script.streams[0], script.numbers[:3], script.numbers[3:]
    for step in range(4):
        first = script.backward()[0]
        stream[-2].versions = {"0": step, "1": step}
        if steps_between:
            stream.append(stepped(others, first[3:], optimizer=1))
            stream.append(records.Cleared(others, {"0": step, "1": step + 1}, LINE))
        second = script.backward()[0]
        stream[-2].versions = {"0": step, "1": step + steps_between}
        stream.append(stepped(ours, total([first[:3], second[:3]])))
        script.clear()
    assert ({"clearing.other-passes", "clearing.several-weights"} & script.findings().open.keys()) == (
        {"clearing.other-passes"} if steps_between else set()
    )


@pytest.mark.parametrize(
    ("windows", "count"),
    [
        ([[TRAIN, TRAIN]] * 5 + [[PROBE, TRAIN, TRAIN]] + [[TRAIN, TRAIN]] * 5, 1),
        ([[PROBE, TRAIN]] + [[TRAIN]] * 3, 1),
        ([[TRAIN]] * 5 + [[PROBE, TRAIN]] * 4, 4),
        ([[TRAIN]] + [[PROBE, TRAIN]] * 4, 4),  # each step leaves gradients for the next one
        ([[TRAIN, TRAIN]] + [[PROBE, TRAIN]] * 4, 4),
        ([[TRAIN]] * 3 + [[TRAIN, TRAIN]] * 2, 2),  # of omitted steps
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
        ((0, 1, 0, 1, 0), False, 0, {OTHER}),  # on the inputs of this window
    ],
)
def test_an_evaluation_before_a_step(evaluations, moves, of, expected):
    """moves: the evaluation is at other weights. of: the window with its inputs, relative to this one."""
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


OTHER_LINE = ["train.py", 70, "main"]


def discarded(findings):
    fact = findings.open.get("clearing.discarded")
    return None if fact is None else tuple(fact.says.values[name] for name in ("passes", "windows", "steps"))


@pytest.mark.parametrize(
    ("lost", "rows", "loader", "expected", "counts"),
    [
        ((1, 1, 1, 1), "others", 7, {"watch/used"}, None),
        ((2, 0, 3, 1), "others", 7, set(), (6, 3, 4)),  # a filter
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
    """Clears the passes of each window up to `dropped`. Losses are divided by the number of all passes."""
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
    assert discarded(findings) == (None if expected else (sum(dropped) + 4, 4, 4))


def of_another(script, number):
    """A step of an optimizer that is not concerned by the clearing."""
    script.each(records.Parameter(90 + number, [6, 5], "float32", 1, f"q{number}"))
    script.each(records.Optimizer(1 + number, "SGD", [90 + number]))
    gradient = script.backward()[0][:1]
    for stream in script.streams:
        stream[-1] = records.Local(script.backwards, [90 + number], [90 + number], "float32", sketches(gradient))
    script.each(stepped([90 + number], gradient, gradient, optimizer=1 + number))


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


@pytest.mark.parametrize(("is_used", "expected"), [(False, ("clearing.part", 4)), (True, None)])
def test_a_pass_is_cleared_for_some_parameters(is_used, expected):
    """is_used: another optimizer has stepped on that pass before, such as that of a generator."""
    script = Script(ranks=1)
    script.each(records.Parameter(90, [6, 5], "float32", 1, "q"))
    script.each(records.Optimizer(1, "SGD", [90]))
    for _ in range(4):
        [first] = script.backward()
        other = first[:1]
        script.each(records.Local(script.backwards, [90], [90], "float32", sketches(other)))
        if is_used:
            script.each(stepped([90], other, other, optimizer=1))
        script.each(records.Cleared(script.numbers, script.versions, OTHER_LINE))
        script.step(script.backward())
        if not is_used:
            script.each(stepped([90], other, other, optimizer=1))
        script.clear()
    findings = script.findings()
    assert laws(findings) == set()
    fact = findings.open.get("clearing.part")
    assert (None if fact is None else (fact.says.code, fact.count)) == expected


@pytest.mark.parametrize("used", [(), [torch.zeros(shape) for shape in SHAPES]])
@pytest.mark.parametrize(
    ("computes", "site", "expected"),
    [
        (True, OTHER_LINE, ("watch/used", OTHER_LINE)),
        (True, None, ("watch/has-gradient", LINE)),  # cleared by hand
        (False, OTHER_LINE, ("watch/has-gradient", LINE)),
    ],
)
def test_steps_without_gradients_that_were_cleared(used, computes, site, expected):
    script = Script(ranks=1)
    script.backward()
    script.each(records.Cleared(script.numbers, script.versions, None))
    for _ in range(4):
        if computes:
            script.backward()
        script.each(records.Cleared(script.numbers, script.versions, site))
        script.each(stepped(script.numbers, used))
    findings = script.findings()
    if used and not computes:
        assert (laws(findings), "clearing.zeroed" in findings.open) == (set(), True)
        return
    [cause] = findings.causes.values()
    assert (cause.first.law, cause.first.site) == expected
    assert (cause.count, cause.first.step) == (4, 0)


def test_some_gradients_are_set_to_zero():
    script = Script(ranks=1)
    for step in range(4):
        computed = script.backward()
        if step == 2:
            script.each(records.Cleared(script.numbers, script.versions, OTHER_LINE))
        script.step([[torch.zeros(shape) for shape in SHAPES]] if step == 2 else computed)
        script.clear()
    findings = script.findings()
    fact = findings.open["clearing.zeroed"]
    assert (laws(findings), fact.count, fact.step) == (set(), 1, 2)


def test_gradients_that_are_kept_by_hand_and_averaged_in_turn():
    def train():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            average = None
            for _ in range(3):
                optimizer.zero_grad()
                loss(model).backward()
                new = [one.grad.clone() for one in model.parameters()]
                average = [(one + two) / 2 for one, two in zip(average or new, new, strict=True)]
            for one, gradient in zip(model.parameters(), average, strict=True):
                one.grad = gradient
            optimizer.step()

    assert watched(train).open["micro.weighted"].says.values == {"table": "rank 0: 0.5, 0.5, 1"}
