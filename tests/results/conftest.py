"""A synthetic run with every verdict: its cases, its file, and the results that the reader returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.results import Results, read_results

from . import synthetic
from .regression import Case


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    """The cases as plain JSON values."""
    return synthetic.all_cases()


@pytest.fixture
def one_case() -> Case:
    """A passing case, to change."""
    return synthetic.passing("ddp", "ddp", 2, 2, "fp32", "line")


@pytest.fixture
def hostile() -> str:
    """Text that would break out of a page or of a line."""
    return synthetic.HOSTILE


@pytest.fixture(scope="session")
def results_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete results file."""
    path = tmp_path_factory.mktemp("results") / "results.jsonl"
    synthetic.write(path)
    return path


@pytest.fixture(scope="session")
def results(results_file: Path) -> Results:
    """The contents of that file."""
    return read_results(results_file)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Results]:
    """Writes these cases to a file, and reads it."""

    def written(cases: list[Case], planned: int | None = None) -> Results:
        synthetic.write(tmp_path / "results.jsonl", cases, planned)
        return read_results(tmp_path / "results.jsonl")

    return written
