"""`conformance.run`: the results of `conformance run`, from Python."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import conformance
from conformance.running import RunError

FIRST = "single-batched-fp32-momentum"


def test_results_of_a_file_and_their_page(write):
    results = conformance.run(write(), case=[FIRST])
    assert [(case.id, case.verdict) for case in results.cases] == [(FIRST, "PASS (exact)")]
    assert results.conforming
    page = results._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert FIRST in page
    assert [*Path().glob("conformance-*")] == []


def test_results_of_a_function_in_a_folder(write):
    target = write()
    spec = importlib.util.spec_from_file_location("mine", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = conformance.run(module.train, case=[FIRST], processes=1, time_limit=50, output="out")
    assert results.passed == 1
    assert (Path("out") / "conformance-report.html").exists()


@pytest.mark.parametrize(("trainer", "says"), [("none.py", "none.py: no such file"), (len, "len is in no file")])
def test_nothing_is_judged(folder, trainer, says):
    with pytest.raises(RunError, match=says):
        conformance.run(trainer)
