"""What samplers deal out to ranks: all data, or what was cut by rank before."""

import pytest
import torch

from conformance.watch import records

from .scripts import LINE, Script, total

_RANKS = 2


def dealt(cut=True, epochs=4, rows=160, replicas=_RANKS, augments=False, tells=True, shuffles=True, averages=True):
    """The laws that a script breaks whose sampler deals rows out. cut: they are cut by rank before. augments: no row
    comes twice. tells: the sampler is told of each epoch."""
    script = Script(ranks=_RANKS)
    for epoch in range(epochs):
        number = epoch if tells else 0
        script.each(records.Epoch(3, number, shuffles, replicas))
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(number)).tolist()
        batch = rows // 8
        for at in range(0, len(order) // _RANKS, batch):
            for rank, stream in enumerate(script.streams):
                part = order[rank::_RANKS][at : at + batch]
                # Each rank has as many rows of its own.
                part = [100_000 * rank + row for row in part] if cut else part
                part = [1_000_000 * (epoch + 1) + row for row in part] if augments else part
                stream.append(records.Entered(part, True, LINE, 3))
            computed = script.backward()
            script.step([total(computed, 0.5)] * _RANKS if averages else computed)
            script.clear()
    return {law for law, _ in script.findings().causes}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"cut": False}, False),
        ({"replicas": 1}, False),  # a sampler of this rank's part alone
        ({"replicas": 4}, False),
        ({"augments": True}, False),
        ({"augments": True, "cut": False}, False),
        ({"tells": False}, False),
        ({"tells": False, "cut": False}, False),  # the same order in each epoch
        ({"shuffles": False}, False),
        ({"epochs": 1}, False),
        ({"rows": 40, "epochs": 2}, False),  # too few
    ],
)
def test_data_that_are_cut_before_they_are_dealt_out(options, expected):
    assert ("watch/dealt-once" in dealt(**options)) == expected


def test_many_rows_are_looked_at_in_part():
    assert "watch/dealt-once" in dealt(rows=20_000, epochs=2)
    assert "watch/dealt-once" not in dealt(rows=20_000, epochs=2, cut=False)


def test_ranks_that_do_not_train_together_may_each_have_their_data():
    assert "watch/dealt-once" not in dealt(averages=False)
