"""The second run of a failed case adds lines, and never loses the first result."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from conformance.results.plain import record
from conformance.results.result_lines import CaseRecord
from conformance.runner.front.client import RunnerError
from conformance.suite import one_item
from conformance.suite.servers import Servers

from ..results import synthetic


def result(verdict, headline):
    plain = synthetic.passing("mine", "single", 1, 1, "fp32", "line")
    return record(CaseRecord, {**plain, "verdict": verdict, "headline": headline})


@pytest.mark.parametrize(
    ("second", "stays"),
    [("FAIL (numerics)", False), ("HANG", True), (RunnerError("no process"), True), (ZeroDivisionError(), True)],
)
def test_the_first_result_stays_if_the_second_run_ends_differently(second, stays, monkeypatch):
    def run(item, servers, time_limit, traces, *, by_line=False):
        if not by_line:
            return result("FAIL (numerics)", "first")
        if isinstance(second, Exception):
            raise second
        return result(second, "second")

    monkeypatch.setattr(one_item, "_record", run)
    item = SimpleNamespace(case=SimpleNamespace(backend="single"), declared=None, undeclared=None)
    found = one_item.run(item, Servers(), 1.0)
    assert (found.verdict, found.headline) == ("FAIL (numerics)", "first" if stays else "second")
    assert bool(found.notes) == isinstance(second, Exception)
