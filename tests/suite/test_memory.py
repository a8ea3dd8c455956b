"""A process that judges many cases keeps no evidence of a reported case."""

from __future__ import annotations

import gc

import pytest

from conformance.runner.front.client import Outcome
from conformance.verdict.evidence import RankEvidence

FIRST, SECOND = (f"single-{path}-fp32-momentum" for path in ("batched", "acc2"))


class Looks:
    """Notes after each case which of these objects exist, and which items keep a result."""

    def __init__(self):
        self.items, self.found = [], []

    @pytest.hookimpl
    def pytest_collection_finish(self, session):
        self.items = session.items

    @pytest.hookimpl
    def pytest_runtest_logfinish(self):
        gc.collect()
        alive = [thing for thing in gc.get_objects() if isinstance(thing, Outcome | RankEvidence)]
        results = [item for item in self.items if "conformance" in vars(item)]
        self.found.append((len(alive), len(results)))


def test_a_case_that_is_reported(conformance, write, monkeypatch):
    runs, looks = pytest.main, Looks()
    monkeypatch.setattr(pytest, "main", lambda arguments, plugins: runs(arguments, plugins=[*plugins, looks]))
    ended = conformance("run", write(), "--case", FIRST, "--case", SECOND)
    assert (ended.code, ended.err) == (0, "")
    assert looks.found == [(0, 0)] * 2
