"""Rows of long tables take turns: each has one day of the week, and runs when it is named."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

ROWS = """
import pytest

@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(40))
def test_in_turn(number):
    pass

def test_daily():
    pass
"""


@pytest.fixture
def ran(pytester: pytest.Pytester):
    """The tests that run with these arguments."""
    pytester.makeconftest(Path(__file__).parents[1].joinpath("conftest.py").read_text())
    pytester.makepyfile(test_rows=ROWS)

    def run(*arguments: str) -> list[str]:
        passed, skipped, failed = pytester.inline_run(*arguments).listoutcomes()
        assert not skipped + failed
        return [report.nodeid for report in passed]

    return run


def test_each_row_has_one_day_of_the_week(ran) -> None:
    days = [ran("--turn", str(day)) for day in range(7)]
    assert all(day.pop() == "test_rows.py::test_daily" for day in days)
    assert sorted(name for day in days for name in day) == sorted(ran("--turn", "all")[:-1])
    assert all(0 < len(day) < 20 for day in days)


def test_today_has_its_turn(ran) -> None:
    assert ran() == ran("--turn", str(date.today().toordinal() % 7))


@pytest.mark.parametrize("named", [["test_rows.py::test_in_turn"], ["-k", "in_turn"]])
def test_what_is_named_runs_on_each_day(ran, named: list[str]) -> None:
    assert len(ran(*named)) == 40


def test_processes_that_run_tests_together_have_the_day_of_the_first(pytester: pytest.Pytester, ran) -> None:
    other = str((date.today().toordinal() + 3) % 7)
    alone = ran("--turn", other)
    pytester.runpytest("-n", "2", "--turn", other).assert_outcomes(passed=len(alone))
