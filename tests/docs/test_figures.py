"""The figures of the pages that explain are those of the code."""

from __future__ import annotations

import pytest

from tools.figures import FIGURES, FOLDER


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_that_of_the_code(name: str) -> None:
    """Otherwise run: python -m tools.figures."""
    assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == FIGURES[name]()
