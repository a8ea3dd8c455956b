"""Figures: any numbers are drawn inside the frame, and the worst step is never left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.report.figure import HEIGHT, MOST_POINTS, WIDTH, drawing, linear, plot
from conformance.results.result_lines import CaseRecord, Step

from ..results.regression import Case

numbers = st.none() | st.floats(width=64)
vectors = st.lists(numbers, min_size=1, max_size=8).map(tuple)


def case_of(steps: list[Step], skips: tuple[int, ...] = ()) -> CaseRecord:
    return CaseRecord(
        "id", "trainer", "target", "command", path="ddp-w2", backend="ddp", layout="batched", world_size=2,
        accumulation=1, precision="fp32", workload="line", device="cpu", verdict="PASS (exact)", headline="headline",
        parameters=("w", "b"), steps=tuple(steps), skips=skips,
    )  # fmt: skip


def corners(path: str) -> list[tuple[int, int]]:
    """The points that a path goes through."""
    found = [(0, 0)]
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        values = [int(one) for one in re.findall(r"-?\d+", numbers)]
        x, y = found[-1]
        if command in "hHvV":
            values = (
                [*values, y if command.isupper() else 0]
                if command in "hH"
                else [x if command.isupper() else 0, *values]
            )
        for dx, dy in zip(values[::2], values[1::2], strict=True):
            x, y = (dx, dy) if command.isupper() else (x + dx, y + dy)
            found.append((x, y))
    return found[1:]


@given(st.lists(st.tuples(vectors, vectors, vectors, vectors), min_size=1, max_size=70), st.booleans())
def test_any_numbers_are_drawn_inside_the_frame(
    rows: list[tuple[tuple[float | None, ...], ...]], skipped: bool
) -> None:
    steps = [
        Step(k, k + 1, expected, observed, error, tuple(abs(b) if b else b for b in bound))
        for k, (expected, observed, error, bound) in enumerate(rows)
    ]
    plotted = plot(case_of(steps, (0,) if skipped else ()))
    if plotted is None:
        return
    svg = drawing(plotted, (0,))
    assert "nan" not in svg
    for path in re.findall(r' d="([^"]*)"', svg):
        for x, y in corners(path):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@given(st.lists(st.floats(), max_size=9))
def test_ticks_stand_on_their_axis(values: list[float]) -> None:
    axis = linear(values, 100, 0)
    assert 1 <= len(axis.ticks) <= 12
    assert all(axis.low <= value <= axis.high for value, _ in axis.ticks)


@pytest.mark.parametrize(("value", "label"), [(1e-3, "0.001"), (65536.0, "65536"), (-3.0, "-3"), (0.0, "0")])
def test_what_stays_the_same_is_named_as_it_is(value: float, label: str) -> None:
    axis = linear([value] * 5, 100, 0)
    assert axis.ticks == ((value, label),)
    assert axis(value) == 50


def test_the_worst_step_and_the_worst_parameters_are_kept() -> None:
    count, width = 1000, 12
    steps = [Step(k, k, (1.0,) * width, (1.0,) * width, (0.0,) * width) for k in range(count)]
    off = [0.0] * width
    off[9] = 5.0
    steps[617] = Step(617, 617, (1.0,) * width, (1.0,) * width, tuple(off))
    plotted = plot(case_of(steps))
    assert plotted is not None
    assert plotted.parameters == width
    assert [one.name for one in plotted.series] == ["[9]"]
    assert len(plotted.series[0].points) <= MOST_POINTS
    assert plotted.series[0].largest == 5.0


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_lost_value_is_marked_and_not_left_out(lost: float) -> None:
    steps = [Step(0, 0, (1.0,), (1.0,)), Step(1, 1, (1.0,), (lost,))]
    plotted = plot(case_of(steps))
    assert plotted is not None
    assert 'class="fw"' in drawing(plotted)


def test_a_case_without_numbers_has_no_figure() -> None:
    assert plot(case_of([])) is None


def test_curves_that_lie_on_each_other_are_not_drawn() -> None:
    assert plot(case_of([Step(0, 0, (1.0, 2.0), (1.0, 2.0), (0.0, 0.0))])) is None
    shown = [
        plot(case_of([Step(k, k, (float(k), 0.0), (k + error, 0.0), (error, 0.0)) for k in range(3)]))
        for error in (1e-3, 1e-1)
    ]
    assert [plotted and [one.name for one in plotted.series] for plotted in shown] == [None, ["w"]]


def test_layouts_with_one_trajectory_share_one_figure(page: Callable[..., str], cases: list[Case]) -> None:
    apart = next(case for case in cases if case["verdict"] == "FAIL (numerics)")
    assert len(re.findall(r'<symbol id="f', page([apart, apart | {"id": "another"}]))) == 1
