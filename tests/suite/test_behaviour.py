"""Behaviour of a trainer on the terminal: undeclared and declared choices, and the number of supported cases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.cases.matrix import possible

SHORT = "single-acc2-fp32-short-window"


@pytest.fixture
def run_in_words(conformance, write):
    """Runs a trainer that drops the last window; returns the exit code and the printed words."""

    def run(*more, **declares):
        path = write(inside="if len(window) < task.accumulation: break", name="mine.py")
        said = "".join(f', {choice}="{way}"' for choice, way in declares.items())
        Path(path).write_text(Path(path).read_text().replace('"fp16"])', f'"fp16"]{said})'))
        ended = conformance("run", path, "--case", SHORT, "--case", "single-samples-fp64-momentum", *more)
        return ended.code, " ".join(ended.out.split())

    return run


def test_what_is_done_silently_is_a_warning_and_how_much_is_declared_is_said(run_in_words):
    code, words = run_in_words()
    assert code == 0
    assert "! drops a short last window Its samples train nothing. If this is intended, add" in words
    assert "The only case passed. 1 not run. 1 warning, under Behaviour." in words
    assert 'id="behaviour"' in Path("conformance-report.html").read_text(encoding="utf-8")
    said = re.search(r"mine supports (\d+) of (\d+) single cases; (.*?)\.", words)
    assert said is not None
    assert 0 < int(said[1]) < int(said[2]) == possible("single")
    assert said[3] == "not supported: layout samples"


def test_what_is_declared_is_said_without_a_warning(run_in_words):
    code, words = run_in_words("--verbose", last_window="drop")
    assert code == 0
    assert "· drops a short last window (declared)" in words
    assert "1 warning" not in words


def test_what_is_declared_and_done_otherwise_is_a_failure(run_in_words):
    code, words = run_in_words(last_window="step")
    assert code == 1
    assert 'FAIL (law) The trainer sets last_window="step", but drops a short last window' in words
    assert "1 warning" not in words
