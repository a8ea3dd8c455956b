"""Trainers whose ranks cannot be forked: run and report say so first, with the reason and what to do."""

from __future__ import annotations

import json
from pathlib import Path

# A run in this process forgets its imports, and numpy cannot be imported twice.
import numpy  # noqa: F401
import pytest

CASE = "single-batched-fp32-momentum"
THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="weather", daemon=True).start()
"""
NOTE = (
    "{} takes seconds per case, because each rank starts a fresh Python that imports torch: forks are unsafe after its "
    "import, with 1 thread running (weather). Start threads inside its function, not on import."
)


@pytest.fixture
def slow(write):
    """A trainer that starts a thread on import."""
    target = write()
    with open(target, "a") as file:
        file.write(THREAD)
    return target


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("processes", ["1", "2"])
def test_it_is_said_first(conformance, slow, processes):
    note = NOTE.format(slow)
    ended = conformance("run", slow, "--case", CASE, "-n", processes)
    assert ended.code == 0
    assert words(ended.out).startswith(note)
    assert words(ended.out).count(note) == 1
    with open("conformance-results.jsonl") as file:
        assert json.loads(file.readline())["notes"] == [note]
    Path("conformance-report.html").unlink()
    assert words(conformance("report", "conformance-results.jsonl").out).startswith(note)
    page = Path("conformance-report.html").read_text()
    assert note in page.partition("<h1")[0]


def test_pytest_warns_and_no_filter_makes_that_an_error(pytester, slow):
    options = "--pyargs", "conformance.suite", "-p", "no:cacheprovider", "-W", "error"
    result = pytester.runpytest_inprocess(*options, "--trainer", slow, "--case", CASE)
    result.assert_outcomes(passed=1, warnings=1)
    assert NOTE.format(slow) in words("\n".join(result.outlines))
