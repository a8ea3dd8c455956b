"""Applies the project's `[tool.conformance]` to a run of pytest: options, and expected failures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from conformance.results.plain import record
from conformance.results.result_lines import PASSED, CaseRecord
from conformance.suite.configuration import (
    Configuration,
    ConfigurationError,
    configuration,
    expectation,
    holds,
    matches_nothing,
)
from conformance.suite.options import SELECTING

_FOUND: pytest.StashKey[Configuration] = pytest.StashKey()
#: Whether the run includes everything that the configuration selects.
_IS_WHOLE: pytest.StashKey[bool] = pytest.StashKey()
#: Options that select tests: deselected tests are not expected to fail.
_SELECTING = (*SELECTING, "keyword", "markexpr", "deselect", "lf")


def configured(config: pytest.Config, given: argparse.Namespace) -> list[str]:
    """The arguments that pyproject.toml adds to the given ones."""
    try:
        found = configuration(Path(config.invocation_params.dir))
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_FOUND] = found
    config.stash[_IS_WHOLE] = not any(getattr(given, name, None) for name in _SELECTING)
    return [*found.arguments(vars(given))]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turns an expected failure into an xfail with its reason; an expected failure that passes fails."""
    report = yield
    found = item.config.stash[_FOUND]
    if getattr(report, "conformance", None) is None or not found.expected:
        return report
    case = record(CaseRecord, json.loads(report.conformance))
    report.expectation = name = expectation(case, found.expected)
    if name is not None and case.failed:
        report.outcome, report.wasxfail = "skipped", found.expected[name]
    elif name is not None and case.verdict in PASSED:
        report.outcome, report.longrepr = "failed", holds(case, name, found)
    return report


class _Controller:
    """Sees all reports, including those of workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._matched: set[str] = set()
        self.wrong: list[str] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        self._matched.add(getattr(report, "expectation", None) or "")

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ended_early = session.shouldstop or session.shouldfail
        if self._config.stash[_IS_WHOLE] and not ended_early and not self._config.option.collectonly:
            found = self._config.stash[_FOUND]
            self.wrong = [matches_nothing(name, found) for name in found.expected if name not in self._matched]
        if self.wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.wrong:
            terminalreporter.write_line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Controller(config))
