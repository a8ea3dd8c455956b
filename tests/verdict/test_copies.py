"""The copies that ranks end with, where each has stepped a part of the masters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.cases.case import Case
from conformance.laws.run import Events
from conformance.trace.events import read
from conformance.verdict.observability import copies_apart

CASE = Case("deepspeed", 2, 2, "bf16", "momentum")


@pytest.mark.parametrize(
    ("second", "apart"),
    [([1.0, 2.0, 3.0, 4.0], None), ([1.0, None, 3.0, 4.0], None), ([1.0, 2.5, 3.0, 4.0], "weight[1]: 2.0, 2.5;")],
)
def test_copies(second, apart):
    """What a rank does not have whole tells nothing."""
    ends = [[1.0, 2.0, 3.0, 4.0], second]
    ranks = [SimpleNamespace(events=Events((read({"event": "finished", "copies": end}),))) for end in ends]
    found = copies_apart(CASE, ranks)
    assert found == apart if apart is None else apart in found
