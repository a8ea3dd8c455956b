"""Micro-batches are of one loss, wherever they go backward; losses of other lines are other losses."""

import pytest

from .scripts import Script, total

DDP = (True, True, True, False)


@pytest.mark.parametrize(
    ("calls", "waits", "lines", "loader", "accused"),
    [
        ((1, 1, 1, 1), (), (7, 7, 7, 7), 3, True),
        ((1, 1, 1, 2), (), (7, 7, 7, 9), 3, True),  # the last of them in a line of its own
        ((1, 1, 1, 2), DDP, (7, 7, 7, 9), 3, True),
        ((1, 2), DDP[-2:], (7, 9), 3, True),  # the second of them synchronizes
        ((1, 2), (), (7, 7), 3, True),  # within a library, below one line
        ((1, 2), (), (7, 9), 3, False),  # two losses, as far as is known
        ((1, 2, 1, 2), (), (7, 9, 7, 9), 3, False),
        ((1, 1, 1, 2), DDP, (7, 7, 7, 9), None, False),  # by hand
    ],
)
def test_means_that_nothing_divides(calls, waits, lines, loader, accused):
    script = Script(ranks=1)
    for _ in range(4):
        computed = []
        for number, (of_one, line) in enumerate(zip(calls, lines, strict=True)):
            computed += script.backward(targets=8, loader=loader)
            begins = script.streams[0][-2]
            begins.calls, begins.site = of_one, ["train.py", line, "main"]
            begins.waits = bool(waits) and waits[number]
        script.step([total(computed)])
        script.clear()
    assert ["watch/means-averaged"] * accused == [law for law, _ in script.findings().causes]
