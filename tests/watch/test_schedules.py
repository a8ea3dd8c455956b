"""Schedules and learning rates: violations, facts, and correct steps."""

import pytest
import torch

from conformance.watch import records
from conformance.watch.judging.properties import FACTS, Property

from .scripts import LINE, Script, laws, total
from .trained import loss, network, watched

LAW = "watch/schedule-after-step"
AGAIN = "watch/schedule-of-what-steps"
BY_HAND = ["train.py", 9, "main"]


def halves(count):
    return 0.1 / 2**count


def falls(end, to=0.0):
    return lambda count: max(to, 0.1 * (1 - count / end))


def groups(rate):
    """The rates of all groups of parameters."""
    return [*rate] if isinstance(rate, tuple) else [rate]


def seen(events, rate=halves, *, name="StepLR", horizon=None, is_told=False, own=False):
    """events: b is a backward pass, o a step, x a skip, s a step of the schedule, m the creation of one."""
    script, count, computed = Script(ranks=1), 0, []
    for event in events:
        match event:
            case "b":
                computed += script.backward()
            case "o":
                script.step([total(computed)])
                script.streams[0][-1].rates = groups(rate(count))
                script.streams[0][-1].is_own = own
                computed = []
                script.clear()
            case "x":
                script.each(records.Skipped(0, 64.0, LINE))
                computed = []
                script.clear()
            case "m":
                script.each(records.Schedule(0, name, BY_HAND))
            case "s":
                before, after = groups(rate(count)), groups(rate(count + 1))
                count += 1
                script.each(records.Scheduled(0, name, before, after, BY_HAND, count, horizon, is_told))
    return script.findings()


def causes(findings):
    return {(one.first.law, one.first.says.code, one.first.step, one.first.site[1]) for one in findings.causes.values()}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("bos" * 4, set()),
        ("bso" * 4, {(LAW, "schedule.before-step", 0, 9)}),
        ("bbos" * 3 + "bbsos", {(LAW, "schedule.before-step", 3, 9)}),
        ("bsbso" * 4, {(LAW, "schedule.each-pass", 0, 9)}),
        ("bsbos" * 4, set()),  # between two backward passes, as at the end of an epoch
    ],
)
def test_a_schedule_that_steps_before_its_optimizer(events, expected):
    assert causes(seen(events)) == expected
    assert causes(seen(events, is_told=True)) == causes(seen(events, lambda count: 0.1)) == set()


def test_the_changed_rates_are_in_the_effect():
    [cause] = seen("bso" * 4).causes.values()
    assert cause.first.effect.values == {"before": 0.1, "after": 0.05}
    assert (cause.count, cause.ranks) == (4, {0})


@pytest.mark.parametrize(
    ("events", "rate", "own", "expected"),
    [
        ("bos" * 12, lambda count: 0.5 - 0.1 * count, False, {(LAW, "rate.negative", 6, 9)}),
        ("bo" * 3, lambda count: -0.1, False, {(LAW, "rate.negative", 0, 7)}),
        ("bxbo", lambda count: -0.1, False, {(LAW, "rate.negative", 1, 7)}),
        ("bo" * 3, lambda count: -0.1, True, set()),  # an optimizer class of the script may use it
        ("bos" * 12, lambda count: 0.0 if count > 5 else 0.1, False, set()),
    ],
)
def test_a_rate_below_zero(events, rate, own, expected):
    assert causes(seen(events, rate, own=own)) == expected


@pytest.mark.parametrize(
    ("events", "rate", "horizon", "expected"),
    [
        ("bos" * 8, halves, None, {}),
        ("boss" * 8, halves, None, {"schedule.steps-often": {"name": "StepLR", "often": 2.0}}),
        ("bsbsbsbos" * 4, halves, None, {"schedule.steps-often": {"name": "StepLR", "often": 4.0}}),
        ("bosbosboss" * 4, halves, None, {}),  # once a step and once an epoch
        ("boss", halves, None, {}),  # too few steps
        ("mbobobo", halves, None, {"schedule.never-steps": {"name": "StepLR", "steps": 3, "rates": [0.1]}}),
        ("mbobo", halves, None, {}),
        ("bobobos", halves, None, {}),
        ("mbobobos", halves, None, {}),  # one of epochs
        ("s" + "bos" * 4, halves, None, {"schedule.before-first-step": {"name": "StepLR", "times": 1}}),
        ("sss" + "bos" * 8, halves, None, {"schedule.before-first-step": {"name": "StepLR", "times": 3}}),
        ("bxs" + "bos" * 4, halves, None, {}),
        ("bos" * 8, halves, 4, {"schedule.past-its-end": {"name": "StepLR", "made_for": 4, "times": 8}}),
        ("bos" * 8, halves, 6, {}),
        ("bo" * 4, lambda count: 0.0, None, {"schedule.zero-rate": {"steps": 4}}),
        ("bos" * 4, lambda count: (halves(count), 0.0), None, {"schedule.zero-rate": {"steps": 4}}),
        ("bos" * 4, lambda count: (halves(count), 0.1 * (count > 2)), None, {}),  # one group is unfrozen later
        ("bos" * 4, lambda count: 0.1 * count, None, {}),  # a warm-up from 0
        ("bos" * 8, falls(4), None, {"schedule.low-rate": {"low": 4, "steps": 8, "most": 0.1}}),
        ("bos" * 8, falls(4, to=1e-6), None, {"schedule.low-rate": {"low": 4, "steps": 8, "most": 0.1}}),
        ("bos" * 8, falls(4, to=1e-4), None, {}),
        ("bos" * 8, falls(6), None, {}),
    ],
)
def test_facts(events, rate, horizon, expected):
    findings = seen(events, rate, horizon=horizon)
    assert {code: dict(one.says.values) for code, one in findings.open.items()} == expected
    assert not findings.causes
    assert {FACTS[code] for code in expected} <= {(Property.SCHEDULE, "any")}


def test_a_schedule_that_is_given_the_position_may_step_at_any_time():
    assert not seen("sboss" * 6, is_told=True).open


@pytest.mark.parametrize(("argument", "expected"), [((), {LAW}), ((0.5,), set())])
def test_a_schedule_is_given_the_position_by_an_argument(argument, expected):
    def train():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
        loss(model).backward()
        schedule.step(*argument)
        optimizer.step()

    assert laws(watched(train)) == expected


@pytest.mark.parametrize(
    ("events", "rate", "expected"),
    [
        ("boss" * 8, falls(8), {(LAW, "schedule.ends-early", 0, 9)}),
        ("bsbsbsbos" * 8, falls(8), {(LAW, "schedule.ends-early", 0, 9)}),
        ("boss" * 8, falls(16), set()),  # made for micro-batches
        ("boss" * 8, lambda count: 0.1 if count > 8 else 0.0, set()),  # the rate starts at 0
        ("bos" * 8, falls(4), set()),
    ],
)
def test_a_schedule_that_ends_early(events, rate, expected):
    findings = seen(events, rate)
    assert causes(findings) == expected
    assert not expected or "schedule.low-rate" not in findings.open


@pytest.mark.parametrize(
    ("events", "expected"),
    [("bos" * 6, 6), ("boss" * 6, 6), ("sbo" * 6, 5), ("bxs" * 3 + "bos", 4), ("bo" * 4 + "s", 1), ("sss" + "bo", 0)],
)
def test_schedule_steps_after_an_optimizer_step_are_counted(events, expected):
    assert seen(events).seen[Property.SCHEDULE] == expected


@pytest.mark.parametrize(
    ("base", "held", "first", "code"),
    [
        (0.1, 6, 0, "schedule.of-another"),
        (0.1, 6, 1, "schedule.without-steps"),  # a phase that is over
        (0.5, 6, 0, "schedule.without-steps"),  # of another number, such as the weight of a term of the loss
        (0.1, 7, 0, "schedule.without-steps"),  # of other parameters
    ],
)
def test_a_schedule_of_an_optimizer_that_does_not_step(base, held, first, code):
    """Optimizer 1 has the schedule and the first `held` parameters, optimizer 0 the first 6. first: the first steps are
    of optimizer 1."""
    script = Script(ranks=1)
    script.each(records.Parameter(6, [3], "float32", 1, "p6"))
    script.each(records.Optimizer(1, "SGD", [*range(held)]))
    for number in range(5):
        script.step([total(script.backward())])
        script.streams[0][-1].optimizer = int(number < first)
        script.clear()
        after = base * 0.5**number
        script.each(records.Scheduled(1, "StepLR", [after], [after / 2], BY_HAND, number + 1, base=[base]))
    findings = script.findings()
    stated = {*findings.open, *(one.first.says.code for one in findings.causes.values())}
    assert {one for one in stated if one.startswith("schedule.")} == {code}
    assert (AGAIN in laws(findings)) == (code == "schedule.of-another")


@pytest.mark.parametrize(
    ("of", "names", "expected"),
    [
        ((0, 0), ("StepLR", "StepLR"), True),
        ((0, 0), ("LinearLR", "StepLR"), True),
        ((0, 1), ("StepLR", "StepLR"), False),
        ((0,), ("StepLR",), False),
    ],
)
@pytest.mark.parametrize("optimizers", [1, 2])
def test_two_schedules_of_one_of_the_optimizers(of, names, expected, optimizers):
    """of: the optimizer of each schedule."""
    script = Script(ranks=1)
    script.each(records.Optimizer(1, "SGD", [*range(6)]))
    for step in range(4):
        for optimizer in range(optimizers):
            script.step([total(script.backward())])
            script.streams[0][-1].optimizer = optimizer
            script.clear()
        for optimizer, name in zip(of, names, strict=True):
            script.each(records.Scheduled(optimizer, name, [0.1], [0.1], BY_HAND, step + 1))
    is_told = "schedule.several" in script.findings().open
    assert is_told == (expected and optimizers > 1)


@pytest.mark.parametrize(
    ("losses", "captures", "expected"),
    [
        ("nnnn", False, {"watch/from-the-model"}),
        ("nnnn", True, set()),  # gradients are computed separately, and may be assigned by hand
        ("nnnm", False, set()),  # for example to create the optimizer's state
        ("nn", False, set()),
    ],
)
def test_a_loss_that_does_not_depend_on_the_model(losses, captures, expected):
    """losses: n is a new number, m depends on the model."""
    script = Script(ranks=1)
    if captures:
        script.each(records.Captured(script.numbers))
    for source in losses:
        computed = script.backward()
        script.step([total(computed)])
        if source == "n":
            stream = script.streams[0]
            stream[-3].is_cut_off = True
            stream[-1].used, stream[-1].gradients = [], []
            del stream[-2]
    assert laws(script.findings()) & {"watch/from-the-model"} == expected
