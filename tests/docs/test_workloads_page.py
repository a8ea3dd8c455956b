"""docs/WORKLOADS.md: its numbers are correct, and page and figures agree with the code. Needs no matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools import workloads_page

ROOT = Path(__file__).parents[2]


def test_the_page_is_that_of_the_code():
    """Otherwise run: python -m tools.workloads_page."""
    assert (ROOT / "docs/WORKLOADS.md").read_text(encoding="utf-8") == workloads_page.page()


@pytest.mark.parametrize("name", workloads_page.FIGURES)
def test_the_figures_are_those_of_the_code(name):
    drawn = (ROOT / "docs/workloads" / f"{name}.svg").read_text(encoding="utf-8")
    assert workloads_page.digest(name) in drawn
    assert f"(workloads/{name}.svg)" in workloads_page.page()


def test_a_figure_of_other_numbers_has_another_digest(monkeypatch):
    before = workloads_page.digest("learning-rates")
    monkeypatch.setattr(workloads_page, "RATES", (*workloads_page.RATES[:-1], 0.255))
    assert workloads_page.digest("learning-rates") != before


@pytest.mark.parametrize(
    "line",
    [
        "| 4 | 4 | 8 | 4 |", "|  |  | loss_mse | 7.5 |", "| (4, 6.25) | 14 |", "| (3, 1) (4, 6.25) | 22 |",
        "exactly 2/15 for all four points", "too far above 1/32", "All pass.", "all 4 nodes of a ring have 4.99",
    ],
)  # fmt: skip
def test_what_it_says(line):
    assert line in workloads_page.page()


def test_a_column_that_is_not_normal_is_called_so(monkeypatch):
    shifted = workloads_page.columns_of(workloads_page.multivariate()) + np.array([[0], [0.5], [0], [0]])
    monkeypatch.setattr(workloads_page, "columns_of", lambda _: shifted)
    assert "**Not all pass**" in workloads_page.page()
