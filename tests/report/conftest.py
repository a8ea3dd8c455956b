"""A synthetic run with every verdict, and its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.report.html import render_html
from conformance.results import Results

from ..results.conftest import cases, hostile, one_case, read, results, results_file
from ..results.regression import Case

__all__ = ["cases", "hostile", "one_case", "page", "read", "results", "results_file"]


@pytest.fixture
def page(read: Callable[..., Results], tmp_path: Path) -> Callable[..., str]:
    """The HTML of a run with these cases."""

    def rendered(cases: list[Case], planned: int | None = None) -> str:
        render_html(read(cases, planned), tmp_path / "report.html")
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return rendered
