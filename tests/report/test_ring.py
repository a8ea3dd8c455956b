"""How gradients travel: what is drawn of it, and when it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from conformance.report import ring

from ..results.regression import Case


def section(html: str, name: str) -> str:
    found = re.search(f'<section id="{name}">.*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def test_nothing_is_drawn_outside_of_its_frame() -> None:
    width, height = ring.SIZE
    for panel in ring.panels():
        assert "nan" not in panel.drawing
        places = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", panel.drawing)
        places += re.findall(r'x="(-?[\d.]+)" y="(-?[\d.]+)"', panel.drawing)
        assert places
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)


@pytest.mark.parametrize(
    ("backend", "shown"),
    [
        ("single", False),
        ("ddp", True),
        ("horovod", True),
        ("ring", True),
        ("ring-gather", True),
        ("parameter-server", True),
    ],
)
def test_the_ring_is_shown_where_gradients_travel(
    page: Callable[..., str], one_case: Case, backend: str, shown: bool
) -> None:
    html = page([one_case | {"backend": backend}])
    assert ("Ring all-reduce" in section(html, "travel")) == shown


def test_the_ring_draws_its_schedule() -> None:
    panels = ring.panels()
    assert [panel.title for panel in panels] == [
        "start",
        "reduce-scatter 1",
        "reduce-scatter 2",
        "all-gather 1",
        "all-gather 2",
    ]
    assert [panel.drawing.count('class="rm ') for panel in panels] == [9, 12, 18, 24, 27]
    assert [panel.drawing.count(" whole") for panel in panels] == [0, 0, 3, 6, 9]
    assert [panel.drawing.count('class="ra"') for panel in panels] == [0, 3, 3, 3, 3]
