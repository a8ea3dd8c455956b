"""Reads `[tool.conformance]` in pyproject.toml: options for this project's trainers, under the names of the command
line, what a watch expects, and expected failures, each with a reason."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.adapter.declaration import BACKEND_NAMES, did_you_mean
from conformance.results.result_lines import PASSED, CaseRecord
from conformance.suite.options import time_limit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE, TABLE, EXPECTED, WATCH = "pyproject.toml", "tool.conformance", "expected-failures", "watch"


class ConfigurationError(Exception):
    """`str()` is one line: which file, what is wrong in it, and what to write."""


@dataclass(frozen=True)
class Configuration:
    """The contents of the table.

    Attributes:
        file: its path from the current folder; None if there is no table.
        values: by the name of the option; repeatable options have lists.
        expected: reasons of expected failures, by the id of a case or the name of a problem.
        watch: what a watch expects of scripts, by property.
    """

    file: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
    watch: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, given: Mapping[str, Any]) -> Iterator[str]:
        """The command line for the values that `given` does not override; trainers are `--trainer`.

        Args:
            given: the available options by attribute name; None or empty if not given.
        """
        for name, value in self.values.items():
            attribute = name.replace("-", "_")
            if attribute not in given or given[attribute]:
                continue
            if value is True:
                yield f"--{name}"
            elif value is not False:
                yield from (f"--{name}={each}" for each in (value if isinstance(value, list) else [value]))


def configuration(folder: Path | None = None) -> Configuration:
    """Reads the nearest pyproject.toml with the table, in this folder (default: the current one) or above it.

    Raises ConfigurationError.
    """
    here = Path.cwd() if folder is None else folder
    for above in (here, *here.parents):
        file = above / FILE
        if file.is_file():
            shown = Path(os.path.relpath(file, here))
            table = _table(file, shown)
            if table is not None:
                return _checked(shown, table)
    return Configuration()


def _table(file: Path, shown: Path) -> object:
    """The table, or None."""
    try:
        whole = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {shown}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{shown} is not TOML: {' '.join(str(error).split())}") from error
    tool = whole.get("tool")
    return tool.get("conformance") if isinstance(tool, dict) else None


def _checked(file: Path, table: object) -> Configuration:
    if not isinstance(table, dict):
        raise ConfigurationError(f"{file}: [{TABLE}] is not a table: write options below [{TABLE}]")
    values: dict[str, Any] = {}
    expected: Mapping[str, str] = {}
    watch: Mapping[str, str] = {}
    for name, value in table.items():
        try:
            if name == EXPECTED:
                expected = _reasons(value)
            elif name == WATCH:
                watch = _watch(value)
            elif name in _OPTIONS:
                values[name] = _OPTIONS[name](value)
            else:
                known = (*_OPTIONS, EXPECTED, WATCH)
                raise _Wrong(f"unknown option{did_you_mean(name, known) or f'; use one of {_listed(known)}'}")
        except _Wrong as error:
            raise ConfigurationError(f"{file}: [{TABLE}] {name}: {error}") from error
    beside = file.parent
    for name in ("output", "traces"):
        if name in values:
            values[name] = os.path.normpath(beside / values[name])
    if "trainer" in values:
        values["trainer"] = [_from(beside, target) for target in values["trainer"]]
    return Configuration(file, values, expected, watch)


def _from(folder: Path, target: str) -> str:
    """A target as named from the current folder; pyproject.toml names files from its own folder."""
    is_file = target.partition(":")[0].endswith(".py") or "/" in target
    return os.path.normpath(folder / target) if is_file else target


class _Wrong(Exception):
    """`str()`: what is wrong with a value, and what to write."""


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _Wrong(f"{_shown(value)} is not a text; write it in quotes")
    return value


def _texts(value: object) -> list[str]:
    if isinstance(value, list) and value:
        return [_text(one) for one in value]
    if isinstance(value, str) and value:
        return [value]
    raise _Wrong(f'{_shown(value)} is not a text or a list of texts, such as ["one", "two"]')


def _backends(value: object) -> list[str]:
    found = _texts(value)
    for name in found:
        if name not in BACKEND_NAMES:
            hint = did_you_mean(name, BACKEND_NAMES) or f"; use one of {_listed(BACKEND_NAMES)}"
            raise _Wrong(f"unknown backend {_shown(name)}{hint}")
    return found


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"{_shown(value)} is neither true nor false")
    return value


def _seconds(value: object) -> float:
    try:
        return time_limit(str(value) if type(value) in (int, float) else repr(value))
    except argparse.ArgumentTypeError as error:
        raise _Wrong(str(error)) from error


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise _Wrong(f"{_shown(value)} is not a number of processes; write a whole number of at least 1")
    return value


def _reasons(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _Wrong(f'{_shown(value)} is not a table; below [{TABLE}.{EXPECTED}] write "id or problem" = "reason"')
    for name, reason in value.items():
        if not isinstance(reason, str) or not reason.strip():
            raise _Wrong(f'{name} has no reason; write "{name}" = "why it is expected to fail"')
    return dict(value)


def _watch(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or value.keys() - {"expect"} or not isinstance(value.get("expect", {}), dict):
        raise _Wrong(f'{_shown(value)} is not valid; write expect = {{ranks = "sum"}}')
    return {name: _text(one) for name, one in value.get("expect", {}).items()}


_OPTIONS = {
    "trainer": _texts,
    "backend": _backends,
    "case": _texts,
    "thorough": _flag,
    "time-limit": _seconds,
    "traces": _text,
    "output": _text,
    "processes": _count,
}


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Expected:
    """The outcome of the expectations in a run.

    Attributes:
        cases: how many failed as expected. wrong: expectations that were not met, a line each.
    """

    cases: int
    wrong: tuple[str, ...]


def expectation(case: CaseRecord, names: Iterable[str]) -> str | None:
    """The expectation that matches a case: its id, also as trainer:id, or, if it failed, a problem that it shows.

    A problem is the law that it broke, the guard that failed, or the known bug that gives exactly its numbers.
    """
    own = [case.id, f"{case.trainer}:{case.id}"]
    if case.failed:
        own += [finding.law for finding in case.findings if finding.level == "MUST"]
        own += [guard.name for guard in case.guards if not guard.holds]
        own += case.explained_by
    known = set(names)
    return next((name for name in own if name in known), None)


def judged(cases: Iterable[CaseRecord], configuration: Configuration, *, whole: bool) -> Expected:
    """Compares these cases with the expectations.

    ``whole``: they are all that the configuration selects, so each expectation must match one of them.
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
    """The message for a case that is expected to fail but passed."""
    return f"{case.trainer}:{case.id} passed, but a failure is expected; remove {_where(name, configuration)}"


def matches_nothing(name: str, configuration: Configuration) -> str:
    """The message for an expectation that matches no case."""
    return f"no case has the id or problem {name}; correct or remove {_where(name, configuration)}"


def _where(name: str, configuration: Configuration) -> str:
    return f'"{name}" from [{TABLE}.{EXPECTED}] in {configuration.file}'
