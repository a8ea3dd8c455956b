"""The pages on the workloads and on how gradients travel: their numbers, what they draw, and when they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from conformance.oracle.learning_rate import outcome
from conformance.report import dataset, ring, sweep, workloads
from conformance.workloads.exercise import NOISY_LINE, points
from conformance.workloads.workload import as_rational

from ..results.regression import Case

MOST = 150_000


def section(html: str, name: str) -> str:
    found = re.search(f'<section id="{name}">.*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def test_the_tables_of_the_exercise() -> None:
    found = workloads.exercise()
    assert found.losses == ((1, 1, 2, 0.25), (2, 2, 4, 1), (3, 3, 6, 2.25), (4, 4, 8, 4))
    assert found.loss == 7.5
    assert [value for _, value in found.gradients] == [4, 12, 30, 14]
    assert [value for _, value in found.batches] == [8, 22]
    assert [threshold.exact for threshold in found.together] == ["1/15", "2/15"]
    assert found.one_by_one[0].exact == "1/32"


def test_the_notebook() -> None:
    found = workloads.notebook()
    assert len(found.histograms) == len(found.checks) == 4
    assert all(check.holds for row in found.checks for check in row)
    assert len(found.nodes) == 4
    assert len(set(found.nodes)) == 1
    assert found.scatter.count("h0") == 1000


def test_a_column_that_is_not_normal_is_called_so(page: Callable[..., str], one_case: Case) -> None:
    assert "not normal around" not in page([one_case])
    workloads.notebook.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        shifted = workloads.columns_of(workloads.multivariate()) + np.array([[0], [0.5], [0], [0]])
        patch.setattr(workloads, "columns_of", lambda _: shifted)
        text = page([one_case])
    workloads.notebook.cache_clear()
    assert text.count("not normal around") == 1
    assert "not normal around 1" in text


def test_every_learning_rate_is_marked_by_what_becomes_of_it() -> None:
    batches = [points([point]) for point in NOISY_LINE]
    found = [outcome(batches, as_rational(rate)) for rate in sweep.RATES]
    drawn = sweep.settling(batches)
    assert drawn.count('class="wd w-good"') == found.count("converging") == 5
    assert drawn.count('class="wd w-doubt"') == found.count("oscillating") == 3
    assert drawn.count('class="wx"') == found.count("diverging") == 1


def test_rates_stand_on_their_side_of_the_thresholds() -> None:
    """In the pixels of the figure, too."""
    batches = [points(NOISY_LINE)]
    lines = [int(x) for x in re.findall(r'class="wt" d="M(\d+)', sweep.factor(batches))]
    assert len(lines) == 2
    dots = [(tone, int(x)) for tone, x in re.findall(r'class="wd w-(\w+)" d="M(\d+)', sweep.factor(batches))]
    assert len(dots) == len(sweep.RATES)
    for tone, x in dots:
        assert tone == ("good" if x < lines[0] else "doubt" if x < lines[1] else "bad")


def test_nothing_is_drawn_outside_of_its_frame() -> None:
    found, line = workloads.notebook(), workloads.exercise()
    drawings = [(found.scatter, 360, 300), (found.weights, 360, 170), (found.distances, 360, 170)]
    drawings += [(drawing, 180, 100) for drawing in found.histograms]
    drawings += [(line.settling, 360, 210), (line.factor, 360, 210)]
    drawings += [(panel.drawing, *ring.size()) for panel in ring.panels()]
    for svg, width, height in drawings:
        assert "nan" not in svg
        places = re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", svg) + re.findall(r'x="(-?[\d.]+)" y="(-?[\d.]+)"', svg)
        assert places
        assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in places)


def test_a_histogram_counts_every_value() -> None:
    drawn = dataset.histogram(np.array([0.1, 0.1, 1.1, -2.0]), 0)
    heights = sorted(float(height) for height in re.findall(r"v-([\d.]+)h", drawn))
    assert len(heights) == 3
    assert heights[2] == pytest.approx(2 * heights[0], abs=0.1)


def test_the_page_is_light(page: Callable[..., str], one_case: Case) -> None:
    html = page([one_case])
    both = section(html, "workloads") + section(html, "travel")
    assert 10_000 < len(both.encode()) < MOST


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
    assert section(html, "workloads")


def test_the_ring_draws_its_schedule() -> None:
    panels = ring.panels()
    assert [panel.title for panel in panels] == [
        "at first",
        "reduce-scatter 1",
        "reduce-scatter 2",
        "all-gather 1",
        "all-gather 2",
    ]
    assert [panel.drawing.count('class="rm ') for panel in panels] == [9, 12, 18, 24, 27]
    assert [panel.drawing.count(" whole") for panel in panels] == [0, 0, 3, 6, 9]
    assert [panel.drawing.count('class="ra"') for panel in panels] == [0, 3, 3, 3, 3]
