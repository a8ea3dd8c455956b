"""The second run of a failed case adds lines, and never loses the first result."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from conformance.results.plain import record
from conformance.results.result_lines import CaseRecord, Lines
from conformance.runner.front.client import RunnerError
from conformance.suite import one_item
from conformance.suite.servers import Servers

from ..results import synthetic

LINES = Lines("train.py:9")


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
        return replace(result(second, "second"), calls={"weights": LINES})

    monkeypatch.setattr(one_item, "_record", run)
    item = SimpleNamespace(case=SimpleNamespace(backend="single"), declared=None, undeclared=None)
    found = one_item.run(item, Servers(), 1.0)
    assert (found.verdict, found.headline) == ("FAIL (numerics)", "first")
    assert found.is_followed != stays
    assert bool(found.notes) == isinstance(second, Exception)


def test_the_first_result_stays_if_the_second_run_has_another_bug(monkeypatch):
    def run(item, servers, time_limit, traces, *, by_line=False):
        found = result("FAIL (numerics)", "second" if by_line else "first")
        return replace(found, gradient_factors=(3.0 if by_line else 0.5,), calls={"weights": LINES} if by_line else {})

    monkeypatch.setattr(one_item, "_record", run)
    item = SimpleNamespace(case=SimpleNamespace(backend="single"), declared=None, undeclared=None)
    found = one_item.run(item, Servers(), 1.0)
    assert (found.headline, found.gradient_factors, found.is_followed) == ("first", (0.5,), False)
