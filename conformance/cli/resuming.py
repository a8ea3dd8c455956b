"""``conformance run --resume``: the results of a run that did not end, if it was the same run."""

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
from conformance.results.records import CaseRecord, Header
from conformance.suite.options import add_defaults

#: The arguments that results depend on. How many cases run at a time, say, is not among them.
_DECISIVE = {
    "trainer": "trainers", "backend": "--backend", "case": "--case", "thorough": "--thorough",
    "time_limit": "--time-limit", "launcher": "--launcher", "traces": "--traces",
}  # fmt: skip


class CannotResume(Exception):
    """The earlier run was another one. `str()` is one line that says how they differ."""


@dataclass(frozen=True)
class Earlier:
    """A run that did not end: its results file, what it holds, and the files that have changed since, by trainer."""

    file: Path
    results: Results
    changed: Mapping[str, Sequence[str]]

    @property
    def kept(self) -> list[CaseRecord]:
        """The finished cases of trainers whose files have not changed."""
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
            f"{listed([*map(one_line, files)])} changed since the earlier run: "
            f"all cases of {one_line(trainer)} are run again."
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
    """The newest run in this folder that did not end; None if there is none.

    Args:
        options: what the command line asks for now.
        add_arguments: of the command, to read the command line of the earlier run.
        version, machine, sources: as they go into the header.

    Raises:
        CannotResume: it ran something else.
    """
    refused: list[str] = []
    for file in [*folder.unfinished(), folder.results]:
        try:
            results = read_results(file)
        except ResultsError:
            continue  # it was killed before the header was whole
        if file == folder.results and results.cut_off is None:
            continue
        difference = _difference(results.header, options, add_arguments, version, machine)
        if difference is None:
            return Earlier(file, results, _changed(results.header.sources, sources))
        refused.append(f"cannot resume {file}: {difference}; without --resume, a new run starts")
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
    """What the earlier run did that this one does not, if anything."""
    if header.version != version:
        return f"trainer-conformance {visible(header.version)} wrote it, and this is {version}"
    parser = _Parser(add_help=False)
    add_arguments(parser)
    try:
        then = parser.parse_args(shlex.split(header.command)[2:])
        add_defaults(then)
    except (_Unreadable, ValueError):
        return f"it is of the command {visible(header.command)}"
    for name, words in _DECISIVE.items():
        before, now = _value(getattr(then, name)), _value(getattr(options, name))
        if before != now:
            return f"{words} then: {visible(before)}, now: {visible(now)}"
    for name in dict.fromkeys([*header.machine, *machine]):
        found, needed = header.machine.get(name), machine.get(name)
        if found != needed and name != "cpus":
            return f"{visible(name)} has changed since then: {visible(str(found))}, now {visible(str(needed))}"
    return None


def _changed(then: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The files that were changed, added or removed, by trainer."""
    files = {trainer: {*now[trainer].items()} ^ {*then.get(trainer, {}).items()} for trainer in now}
    return {trainer: sorted({name for name, _ in others}) for trainer, others in files.items() if others}


def _value(value: object) -> str:
    """The value of an option in words, whatever the order in which it was given."""
    if isinstance(value, list | tuple):
        return ", ".join(sorted(set(map(relative, value)))) or "the default"
    return "the default" if value is None else relative(str(value))


class _Unreadable(Exception):
    """These are not the arguments of the command."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Unreadable(message)
