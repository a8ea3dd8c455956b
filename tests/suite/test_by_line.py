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
from conformance.trace.events import BackwardBegin, Line, Step
from conformance.verdict.record import _written

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


def rank(number, *lines):
    """A rank that writes gradients at these lines of window 0, between its backward and its step."""
    numbers = {"rank": number, "window": 0, "micro_batch": 0, "called_from": None}
    common = [{**numbers, "where": ("train.py", 5, "train"), "seq": seq, "time": seq} for seq in (0, 9)]
    events = {
        BackwardBegin: [SimpleNamespace(**common[0], line="train.py:5")],
        Step: [SimpleNamespace(**common[1], line="train.py:99")],
        Line: [
            SimpleNamespace(
                **numbers, where=("train.py", line, "train"), line=f"train.py:{line}", seq=seq, writes="gradient"
            )
            for seq, line in enumerate(lines, 1)
        ],
    }
    return SimpleNamespace(of=lambda kind: events.get(kind, []))


@pytest.mark.parametrize(
    ("difference", "divergence", "named"),
    [(None, None, 8), (SimpleNamespace(rank=1), None, 9), (None, SimpleNamespace(), 9)],
)
def test_if_only_some_ranks_are_wrong_their_line_is_named(difference, divergence, named):
    run = SimpleNamespace(ranks=[rank(0, 8), rank(1, 8, 9)])
    judgement = SimpleNamespace(runs=[run], difference=difference, divergence=divergence)
    assert _written(judgement, 0, "train.py")["gradient"].where == f"train.py:{named}"
