"""Micro-batches are of one loss, wherever they go backward; losses of other lines are other losses."""

import pytest

from .scripts import Script, total

WAITS = (True, True, True, False)
"""As DDP does, but for the last micro-batch."""

LAST = "nothing divides their sum, if these lines have one loss"


@pytest.mark.parametrize(
    ("calls", "facts", "accused", "open_"),
    [
        ((1, 1, 1, 1), {}, True, False),
        ((1, 1, 1, 2), {"waits": WAITS}, True, False),  # the last of them synchronizes in a line of its own
        ((1, 1, 1, 2), {"waits": WAITS, "made_by": "aaab"}, False, False),  # and is another loss
        ((1, 1, 1, 2), {"waits": WAITS, "factors": ([], [], [], [0.1])}, False, False),
        ((1, 1, 1, 2), {"waits": WAITS, "loader": (3, 3, 3, 4)}, False, False),
        ((1, 1, 1, 2), {"waits": WAITS, "batches": (1, 1, 1, 0)}, False, False),  # of a batch before
        ((1, 1, 1, 2), {}, False, True),
        ((1, 2), {"waits": WAITS[-2:]}, False, True),  # as two losses have it, too
        ((1, 2), {"own_calls": (7, 7)}, True, False),  # within a library, below one line
        ((1, 2, 1, 2), {}, False, False),
    ],
)
def test_means_that_nothing_divides(calls, facts, accused, open_):
    script = Script(ranks=1)
    of_each = {"calls": calls, "own_calls": calls, "made_by": "a" * len(calls), **facts}
    for _ in range(4):
        computed = []
        for number in range(len(calls)):
            computed += script.backward(targets=8, loader=3)
            for name, values in of_each.items():
                setattr(script.streams[0][-2], name, values[number])
        script.step([total(computed)])
        script.clear()
    findings = script.findings()
    assert [law for law, _ in findings.causes] == ["watch/means-averaged"] * accused
    assert any(why.endswith(LAST) for why in findings.open) == open_
