"""``conformance run --resume``: finds the unfinished run of the same command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from conformance.cli.files import RunFolder
from conformance.report.command import relative
from conformance.report.text import listed, one_line, visible
from conformance.results import Results, ResultsError, read_results
from conformance.results.result_lines import CaseRecord, Header
from conformance.suite.options import add_defaults

#: The arguments that results depend on; the number of processes, for example, is none.
_DECISIVE = {
    "trainer": "trainers", "backend": "--backend", "case": "--case", "thorough": "--thorough",
    "time_limit": "--time-limit", "launcher": "--launcher", "traces": "--traces",
}  # fmt: skip


class CannotResume(Exception):
    """The earlier run was another one. `str()` is one line with the difference."""


@dataclass(frozen=True)
class Earlier:
    """An unfinished run: its results file, its results, and the files that changed since, by trainer."""

    file: Path
    results: Results
    changed: Mapping[str, Sequence[str]]

    @property
    def kept(self) -> list[CaseRecord]:
        """The finished cases of unchanged trainers."""
        # With `--trainer all`, the target of a case has the function as well.
        return [
            case
            for case in self.results.cases
            if self.changed.keys().isdisjoint((case.target, case.target.rpartition(":")[0]))
        ]

    @property
    def changes(self) -> list[str]:
        """A line for each trainer that has changed."""
        return [
            f"{listed([*map(one_line, files)])} changed since then: all cases of {one_line(trainer)} run again."
            for trainer, files in self.changed.items()
        ]


def earlier(
    folder: RunFolder,
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    version: str,
    machine: Mapping[str, Any],
    sources: Mapping[str, Mapping[str, str]],
) -> Earlier | None:
    """The newest unfinished run in this folder; None if there is none.

    Args:
        options: of the present command line.
        add_arguments: reads the command line of the earlier run.
        version, machine, sources: as in the header.

    Raises:
        CannotResume: it ran something else.
    """
    refused: list[str] = []
    for file in [*folder.unfinished(), folder.results]:
        try:
            results = read_results(file)
        except ResultsError:
            continue  # killed before its header was complete
        if file == folder.results and results.cut_off is None:
            continue
        difference = _difference(results.header, options, add_arguments, version, machine)
        if difference is None:
            return Earlier(file, results, _changed(results.header.sources, sources))
        refused.append(f"cannot resume {file}: {difference}; run again without --resume")
    if refused:
        raise CannotResume(refused[0])
    return None


def _difference(
    header: Header,
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    version: str,
    machine: Mapping[str, Any],
) -> str | None:
    """How the earlier run differs from this one, if it does."""
    if header.version != version:
        return f"version {visible(header.version)} wrote it, and this is version {version}"
    parser = _Parser(add_help=False)
    add_arguments(parser)
    try:
        then = parser.parse_args(shlex.split(header.command)[2:])
        add_defaults(then)
    except (_Unreadable, ValueError):
        return f"it has the command {visible(header.command)}"
    for name, words in _DECISIVE.items():
        before, now = _value(getattr(then, name)), _value(getattr(options, name))
        if before != now:
            return f"{words} then: {visible(before)}, now: {visible(now)}"
    for name in dict.fromkeys([*header.machine, *machine]):
        found, needed = header.machine.get(name), machine.get(name)
        if found != needed and name != "cpus":
            return f"{visible(name)} then: {visible(str(found))}, now: {visible(str(needed))}"
    return None


def _changed(then: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The changed, added and removed files, by trainer."""
    files = {trainer: {*now[trainer].items()} ^ {*then.get(trainer, {}).items()} for trainer in now}
    return {trainer: sorted({name for name, _ in others}) for trainer, others in files.items() if others}


def _value(value: object) -> str:
    """The value of an option in words, in any order of its parts."""
    if isinstance(value, list | tuple):
        return ", ".join(sorted(set(map(relative, value)))) or "the default"
    return "the default" if value is None else relative(str(value))


class _Unreadable(Exception):
    """The arguments do not fit the command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unreadable(message)
