"""The work of checking laws grows with the events, and no faster."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from conformance.laws.checking import check
from conformance.laws.subjects import Run

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "laws.py"), run_name="benchmark")


def calls_to_check(steps: int) -> int:
    """How many functions, of Python and of C, are called to check all laws of the benchmark's trace."""
    ranks = [[json.loads(line) for line in BENCHMARK["trace"](rank, steps)] for rank in range(2)]
    run, calls = Run.read(BENCHMARK["spec"](steps), ranks), 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        verified = check(run)
    finally:
        sys.setprofile(None)
    assert not any(one.findings for one in verified)
    return calls


def test_four_times_the_steps_take_four_times_the_calls():
    """What is looked up in all of a rank for each of its windows takes sixteen times as many."""
    few, many = calls_to_check(60), calls_to_check(240)
    assert many <= 4 * few
