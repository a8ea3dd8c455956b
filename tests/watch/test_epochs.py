"""Epochs that a sampler begins with the same batch, and shares that nobody reads."""

import pytest

from conformance.watch import records
from conformance.watch.judging.epochs import _MOST

from .scripts import LINE, Script, total

BROKEN = {"watch/new-order"}


def begun(
    epochs,
    *,
    labelled=True,
    made_anew=False,
    drawn=True,
    data=None,
    trains=True,
    is_all=False,
    shuffles=True,
    texts=False,
):
    """epochs: the number that a sampler is told, and the first batch then, or "model" where another one is made.
    labelled: the labels of samples are known. made_anew: other inputs are made of a sample each time. drawn: which
    samples they are is known. data: what a new sampler for each epoch deals out; None for one sampler. trains: whether
    its batches go backward. is_all: there is one batch in an epoch. texts: no tensor is in it."""
    script = Script(ranks=1)
    for at, told in enumerate(epochs):
        if told == "model":
            script.each(records.Optimizer(at, "SGD", script.numbers))
            continue
        (epoch, batch), sampler = told, at if data else 0
        script.each(records.Epoch(sampler, epoch, shuffles, 2, data))
        rows = [batch, batch + 1]
        made = [at + 1000, at + 2000] if made_anew else rows
        made = [] if texts else made
        script.each(records.First(sampler, epoch, made, rows if drawn else [], labelled, is_all, LINE))
        for _ in range(2):
            computed = script.backward()
            script.streams[0][-2].samplers = [sampler] if trains else []
            script.step([total(computed)])
            script.clear()
    return script.findings()


def laws(findings):
    return {law for law, _ in findings.causes}


@pytest.mark.parametrize(
    ("epochs", "broken", "notes"),
    [
        ([(0, 1), (1, 2), (2, 3)], set(), 0),
        ([(0, 1), (0, 1), (1, 2)], set(), 0),  # taken up again
        ([(0, 1), (0, 1)], set(), 1),
        ([(0, 1), (0, 2), (0, 3)], set(), 0),  # an order of its own all the same
        ([(0, 1), (0, 1), (0, 1)], BROKEN, 0),
        ([(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2)], set(), 0),  # three times each, on purpose
        (["model", (0, 1), "model", (0, 1), "model", (0, 1)], set(), 0),  # a search
        (["model", (0, 1), (0, 1), (0, 1), "model", (0, 1)], BROKEN, 0),
    ],
)
def test_an_epoch_comes_again(epochs, broken, notes):
    findings = begun(epochs)
    assert laws(findings) == broken
    assert len(findings.notes) == notes


@pytest.mark.parametrize("options", [{"trains": False}, {"is_all": True}, {"shuffles": False}])
def test_batches_that_have_no_order_or_train_nothing(options):
    findings = begun([(0, 1)] * 4, **options)
    assert (findings.causes, findings.open) == ({}, {})


def test_a_sampler_that_is_made_anew_goes_through_the_same_data():
    assert laws(begun([(0, 1)] * 3, data=5)) == BROKEN
    assert laws(begun([(0, 1), (1, 2), (2, 3)], data=5)) == set()


@pytest.mark.parametrize(
    ("told", "epochs", "broken"),
    [
        ((True, True), 3, set()),
        ((True, False), 3, BROKEN),
        ((False, False), 3, BROKEN),
        ((False, False, False), 1, set()),  # each epoch is the first one
    ],
)
def test_samplers_side_by_side_go_through_the_same_data(told, epochs, broken):
    script = Script(ranks=1)
    for epoch in range(epochs):
        for sampler, is_told in enumerate(told):
            script.each(records.Epoch(sampler, epoch * is_told, True, 2, 5))
        for sampler, is_told in enumerate(told):
            rows = [epoch * is_told, 7]
            script.each(records.First(sampler, epoch * is_told, rows, rows, True, False, LINE))
        for _ in range(2):
            computed = script.backward()
            script.streams[0][-2].samplers = [*range(len(told))]
            script.step([total(computed)])
            script.clear()
    assert laws(script.findings()) == broken


@pytest.mark.parametrize(
    ("options", "broken", "is_open"),
    [
        ({}, BROKEN, False),
        ({"labelled": False}, set(), True),  # there may be other samples at the same places
        ({"drawn": False}, set(), False),
        ({"texts": True, "labelled": False}, set(), True),
        ({"texts": True, "labelled": False, "drawn": False}, set(), False),
        ({"made_anew": False, "labelled": False}, BROKEN, False),
        ({"made_anew": False, "drawn": False}, BROKEN, False),
    ],
)
def test_the_same_samples_that_are_changed_at_random(options, broken, is_open):
    findings = begun([(0, 1)] * 4, **{"made_anew": True, **options})
    assert laws(findings) == broken
    assert any("at the same places of its data" in why for why in findings.open) == is_open


def test_memory_is_bounded():
    script = Script(ranks=1)
    for number in range(3 * _MOST):
        script.each(records.Epoch(number, 0, True, 2, number // 2))
        script.each(records.First(number, 0, [1, 2], [1, 2], True, False, LINE))
    script.each(records.Epoch(0, 0, True, 2, 7))
    script.each(records.First(0, 0, [1, 2], [1, 2], True, False, LINE))
    assert not script.findings().causes


@pytest.mark.parametrize(
    ("replicas", "samplers", "averages", "is_open"),
    [(2, 1, True, False), (4, 1, True, True), (4, 2, True, False), (4, 1, False, False), (1, 1, True, False)],
)
def test_shares_that_nobody_reads(replicas, samplers, averages, is_open):
    """Two ranks, each with so many samplers."""
    script = Script()
    for number in range(samplers):
        script.each(records.Epoch(number, 0, True, replicas))
    for _ in range(3):
        computed = script.backward()
        script.step([total(computed, 0.5)] * 2 if averages else computed)
        script.clear()
    assert any("is read by nobody" in why for why in script.findings().open) == is_open
