"""Rules for all tests: a skip is a failure, Hypothesis judges results, never durations, Ctrl-C interrupts, and rows of
long tables take turns.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator
from datetime import date
from zlib import crc32

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("project", deadline=None, print_blob=True)
settings.load_profile("project")

# A shell starts with SIGINT ignored what it puts in the background, and our children would take that over.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def zygote_is_ended() -> Iterator[None]:
    """The one that tests share ends after them."""
    yield
    if client := sys.modules.get("conformance.runner.front.client"):
        client.shared.close()


NO_SKIPS = "No test is skipped in this project: make it run, make it fail, or delete it."


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{NO_SKIPS}\n{report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


#: Days in which each row marked `in_turn` runs once.
TURNS = 7


def pytest_addoption(parser: pytest.Parser) -> None:
    # Processes of xdist get the value of the first one: all collect the same tests, at midnight too.
    parser.addoption(
        "--turn",
        choices=[*map(str, range(TURNS)), "all"],
        default=str(date.today().toordinal() % TURNS),
        help="which rows of long tables run: those of a day of the week (default: today's), or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "in_turn: runs on one day of the week, with `--turn all`, and when named")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    turn = config.getoption("turn")
    if turn == "all" or config.option.keyword or any("::" in argument for argument in config.args):
        return
    # By its name alone: no change of a table moves another row to a day that is over.
    later = [
        item
        for item in items
        if item.get_closest_marker("in_turn") and crc32(item.nodeid.encode()) % TURNS != int(turn)
    ]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in {*later}]
