"""Epochs that a sampler begins with the same batch."""

import pytest

from conformance.watch import records

from .scripts import LINE, Script, total


@pytest.mark.parametrize(
    ("epochs", "broken", "notes"),
    [
        ([(0, 1), (1, 2), (2, 3)], set(), 0),
        ([(0, 1), (0, 1), (1, 2)], set(), 1),  # taken up again
        ([(0, 1), (0, 2), (0, 3)], set(), 0),  # an order of its own all the same
        ([(0, 1), (0, 1), (0, 1)], {"watch/new-order"}, 0),
        ([(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2)], set(), 1),  # three times each, on purpose
    ],
)
def test_an_epoch_comes_again(epochs, broken, notes):
    """epochs: the number that the sampler is told, and what the first batch is."""
    findings = begun((epoch, [batch, batch + 7]) for epoch, batch in epochs)
    assert {law for law, _ in findings.causes} == broken
    assert len(findings.notes) == notes


def begun(epochs, sampler=None, trains=True, made_anew=False, drawn=True):
    """epochs: the number that the sampler 0 is told, and what is read then, which `sampler` is said to deal out.
    trains: whether its batches go backward. made_anew: other inputs are made of a sample each time. drawn: which sample
    it is, is known."""
    script = Script(ranks=1)
    for epoch, batches in epochs:
        script.each(records.Epoch(0, epoch, True))
        for batch in batches:
            rows = [batch, batch + 1]
            made = [script.steps, -script.steps] if made_anew else rows
            script.each(records.Entered(made, False, LINE, sampler, rows if drawn else []))
            computed = script.backward()
            script.streams[0][-2].samplers = [sampler or 0] if trains else []
            script.step([total(computed)])
            script.clear()
    return script.findings()


@pytest.mark.parametrize(
    ("batches", "sampler", "broken"),
    [
        ([1, 8], 0, {"watch/new-order"}),
        ([1], 0, set()),  # all that there is, in one batch
        ([1, 8], 1, set()),  # of another sampler, after an evaluation with this one
    ],
)
def test_batches_that_have_no_order_of_that_sampler(batches, sampler, broken):
    assert {law for law, _ in begun([(0, batches)] * 4, sampler).causes} == broken


def test_a_sampler_of_a_validation_that_is_no_training():
    assert not begun([(0, [1, 8])] * 4, 0, trains=False).causes


@pytest.mark.parametrize(("drawn", "broken"), [(True, {"watch/new-order"}), (False, set())])
def test_epochs_of_the_same_samples_that_are_changed_at_random(drawn, broken):
    assert {law for law, _ in begun([(0, [1, 8])] * 4, made_anew=True, drawn=drawn).causes} == broken


def test_the_first_epoch_counts_though_a_wrapper_shows_in_it_only():
    script = Script(ranks=1)
    for _ in range(3):
        script.each(records.Epoch(0, 0, True))
        for batch in (1, 8):
            script.each(records.Entered([batch, batch + 1], True, LINE, 0))
            computed = script.backward()
            script.streams[0][-2].samplers = [0]
            script.step([total(computed)])
            script.clear()
    assert {law for law, _ in script.findings().causes} == {"watch/new-order"}
