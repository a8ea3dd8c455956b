"""Rules for all tests: a skip is a failure, Hypothesis judges results, never durations, and Ctrl-C interrupts."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Iterator

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
