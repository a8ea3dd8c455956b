"""The reference trainers of one device pass, in each precision."""

from __future__ import annotations

import pytest

from conformance.suite.items import collect
from conformance.suite.one_item import run
from conformance.suite.servers import Servers

#: The cases of each; none for those that a run chooses.
PATTERNS = {
    "single": [],
    "batched": ["single-batched-bf16", "single-batched-fp16"],
    "accumulated": ["single-acc4-fp64", *(f"single-acc2-fp16-{name}" for name in ("overflow", "growing-scale", "sgd"))],
}
#: Seconds, on a loaded machine.
TIME_LIMIT = 60.0


@pytest.fixture(scope="module")
def servers():
    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize("trainer", PATTERNS)
def test_every_case_passes(servers, trainer):
    items = [item for item in collect(servers, [trainer], ["single"], PATTERNS[trainer]) if item.verdict is None]
    results = [run(item, servers, TIME_LIMIT) for item in items]
    assert {case.id: case.headline for case in results if not case.verdict.startswith("PASS")} == {}
    assert len(results) > 10
