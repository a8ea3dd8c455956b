"""Figures: whatever the numbers, they are drawn inside the frame, and the worst step is never thinned
away.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.report.figure import HEIGHT, WIDTH, drawing
from conformance.report.scales import Axis, linear, magnitudes
from conformance.report.series import MOST_POINTS, MOST_SERIES, plot
from conformance.results import Results
from conformance.results.records import CaseRecord, Step

from ..results.regression import Case

numbers = st.none() | st.floats(width=64)
vectors = st.lists(numbers, min_size=1, max_size=8).map(tuple)


def case_of(steps: list[Step], skips: tuple[int, ...] = ()) -> CaseRecord:
    return CaseRecord(
        "id", "trainer", "target", "command", path="ddp-w2", backend="ddp", layout="batched", world_size=2,
        accumulation=1, precision="fp32", workload="line", device="cpu", verdict="PASS (exact)", headline="headline",
        parameters=("w", "b"), steps=tuple(steps), skips=skips,
    )  # fmt: skip


@given(st.lists(st.tuples(vectors, vectors, vectors, vectors), min_size=1, max_size=70), st.booleans())
def test_any_numbers_are_drawn_inside_the_frame(
    rows: list[tuple[tuple[float | None, ...], ...]], skipped: bool
) -> None:
    steps = [
        Step(k, k + 1, expected, observed, error, tuple(abs(b) if b else b for b in bound))
        for k, (expected, observed, error, bound) in enumerate(rows)
    ]
    plotted = plot(case_of(steps, (0,) if skipped else ()), "weights")
    assert plotted is not None
    svg = drawing(plotted, (0,))
    assert "nan" not in svg
    for x, y in re.findall(r"[ML](-?\d+) (-?\d+)", svg):
        assert 0 <= int(x) <= WIDTH
        assert 0 <= int(y) <= HEIGHT


@given(st.lists(st.floats(), max_size=9), st.sampled_from([linear, magnitudes]))
def test_ticks_stand_on_their_axis(values: list[float], make: Callable[..., Axis]) -> None:
    axis = make(values, 100, 0)
    assert 1 <= len(axis.ticks) <= 12
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)


def test_the_worst_step_and_the_worst_parameters_are_kept() -> None:
    count, width = 1000, 12
    steps = [Step(k, k, (1.0,) * width, (1.0,) * width, (0.0,) * width) for k in range(count)]
    off = [0.0] * width
    off[9] = 5.0
    steps[617] = Step(617, 617, (1.0,) * width, (1.0,) * width, tuple(off))
    plotted = plot(case_of(steps), "weights")
    assert plotted is not None
    assert plotted.parameters == width
    assert len(plotted.series) == MOST_SERIES
    assert len(plotted.series[0].points) <= MOST_POINTS
    worst = max(plotted.series, key=lambda series: series.largest)
    assert (worst.name, worst.largest) == ("[9]", 5.0)


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_lost_value_is_marked_and_not_left_out(lost: float) -> None:
    steps = [Step(0, 0, (1.0,), (1.0,)), Step(1, 1, (1.0,), (lost,))]
    plotted = plot(case_of(steps), "weights")
    assert plotted is not None
    assert 'class="fw"' in drawing(plotted)


def test_a_case_without_numbers_has_no_figure() -> None:
    assert plot(case_of([]), "weights") is None
    assert plot(case_of([Step(0, 0, (1.0,), (1.0,))]), "gradient") is None


def test_layouts_with_one_trajectory_share_one_figure(
    results: Results, page: Callable[..., str], cases: list[Case]
) -> None:
    exact = [case for case in cases if case["verdict"] == "PASS (exact)" and case["precision"] == "fp32"]
    assert len(exact) > 10
    assert len(re.findall(r'<symbol id="f', page(exact))) == 2
