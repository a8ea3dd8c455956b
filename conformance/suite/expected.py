"""Failures that a project expects: named in `[tool.conformance.expected-failures]`, each with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.results.records import PASSED, CaseRecord
from conformance.suite.configuration import EXPECTED, TABLE, Configuration


@dataclass(frozen=True)
class Expected:
    """What came of the expectations in a run.

    Attributes:
        cases: how many failed as expected. wrong: expectations that do not hold, a line each.
    """

    cases: int
    wrong: tuple[str, ...]


def expectation(case: CaseRecord, names: Iterable[str]) -> str | None:
    """The name that stands for the case: its id, also as trainer:id, or a cause that it shows, if it failed.

    A cause is the law that it broke, the condition that does not hold, or the known bug that makes its numbers.
    """
    own = [case.id, f"{case.trainer}:{case.id}"]
    if case.failed:
        own += [finding.law for finding in case.findings if finding.level == "MUST"]
        own += [guard.name for guard in case.guards if not guard.holds]
        own += case.explained_by
    known = set(names)
    return next((name for name in own if name in known), None)


def judged(cases: Iterable[CaseRecord], configuration: Configuration, *, whole: bool) -> Expected:
    """Hold these cases against what is expected.

    ``whole``: they are all that the configuration selects, so that a name must match one of them.
    """
    unmatched = dict.fromkeys(configuration.expected)
    failed = 0
    wrong = []
    for case in cases:
        name = expectation(case, configuration.expected)
        if name is None:
            continue
        unmatched.pop(name, None)
        failed += case.failed
        if case.verdict in PASSED:
            wrong.append(holds(case, name, configuration))
    if whole:
        wrong += [matches_nothing(name, configuration) for name in unmatched]
    return Expected(failed, tuple(wrong))


def holds(case: CaseRecord, name: str, configuration: Configuration) -> str:
    """The line on a case that is expected to fail and passes."""
    return f"{case.trainer}:{case.id} holds, though a failure is expected; remove {_where(name, configuration)}"


def matches_nothing(name: str, configuration: Configuration) -> str:
    """The line on an expectation that no case meets."""
    return f"no case has the id or the cause {name}; correct or remove {_where(name, configuration)}"


def _where(name: str, configuration: Configuration) -> str:
    return f'"{name}" from [{TABLE}.{EXPECTED}] in {configuration.file}'
