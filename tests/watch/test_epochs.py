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
        ([(0, 1), (0, 1), (0, 1)], {"watch/new-order"}, 1),
        ([(0, 1), (0, 1), (0, 1), (1, 2), (1, 2), (1, 2)], set(), 1),  # three times each, on purpose
    ],
)
def test_an_epoch_comes_again(epochs, broken, notes):
    """epochs: the number that the sampler is told, and what the first batch is."""
    script = Script(ranks=1)
    for epoch, batch in epochs:
        script.each(records.Epoch(0, epoch, True))
        script.each(records.Entered([batch, batch + 1], False, LINE))
        script.step([total(of_rank for of_rank in script.backward())])
        script.clear()
    findings = script.findings()
    assert {law for law, _ in findings.causes} == broken
    assert len(findings.notes) == notes
