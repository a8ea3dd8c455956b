"""Steps that find no gradients after those that did."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.laws.run import Events
from conformance.trace.events import read
from conformance.verdict.guards import idle_after

BACKWARD = {"event": "backward_end"}


def step(window, gradients):
    return {"event": "step", "window": window, "gradients": gradients}


FOUND = [BACKWARD, step(0, [1.0, None]), BACKWARD, step(1, [0.0, 2.0])]
IDLE = [BACKWARD, step(1, [None, None])]


@pytest.mark.parametrize(
    ("events", "window"),
    [
        ([*FOUND, *IDLE], 1),
        (FOUND, None),
        # Nothing was to be found without a backward, as for a second optimizer that holds what is frozen.
        ([*FOUND, IDLE[1]], None),
        ([*FOUND, *IDLE, BACKWARD, step(2, [1.0, 1.0])], None),
        # Gradients that could not be read are not missing.
        ([*FOUND, BACKWARD, step(2, None)], None),
        (IDLE, None),
    ],
)
def test_the_last_step_that_found_gradients(events, window):
    assert idle_after(SimpleNamespace(events=Events(tuple(map(read, events))))) == window
