"""The files for CI systems that `run`, `report` and `watch` write, on request or if the environment asks for them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from conformance.cli.files import unwritable
from conformance.report.card import Card, CaseCard
from conformance.report.ci import Digest, digest, endpoint, junit, markdown, sarif, svg, workflow_commands
from conformance.report.text import is_replaced
from conformance.report.text import write as write_file
from conformance.results import Results, ResultsError
from conformance.suite.configuration import expectation

Renderers: TypeAlias = Mapping[str, Callable[[], str]]
"""Makes the text of each format, by its name."""

#: By format: the name and the content of its file.
_FORMATS = {
    "markdown": ("FILE.md", "the problems and counts in Markdown, as for a pull request"),
    "junit": ("FILE.xml", "one JUnit test per case"),
    "sarif": ("FILE.sarif", "one SARIF result per problem, at its line, for code scanning"),
    "badge": ("FILE.svg", "an SVG badge, or with FILE.json a badge for shields.io"),
}
OF_A_WATCH = ("markdown", "junit", "sarif")


def add_arguments(parser: argparse.ArgumentParser, which: Iterable[str] = _FORMATS) -> None:
    group = parser.add_argument_group(
        "for CI",
        "In GitHub Actions, the job summary gets the Markdown, and each problem an\nannotation, without any option.",
    )
    for name in which:
        file, what = _FORMATS[name]
        kind = _badge if name == "badge" else Path
        group.add_argument(f"--{name}", type=kind, metavar=file, help=f"also write {what}")


def _badge(name: str) -> Path:
    file = Path(name)
    if file.suffix not in ("", ".svg", ".json"):
        raise argparse.ArgumentTypeError(f"a badge is no {file.suffix} file; name it FILE.svg or FILE.json")
    return file


def unwritable_file(options: argparse.Namespace, *others: Path) -> str | None:
    """One line: why a requested file cannot be written. `others`: the other files of the command."""
    wanted = [file for _, file in _wanted(options)]
    for file in wanted:
        if (reason := unwritable(file)) is not None:
            return f"cannot write {file}: {reason}"
    files = [file for file in (*others, *wanted) if is_replaced(file)]
    # A symbolic link is replaced, but its folders are resolved.
    places = [file.parent.resolve() / file.name for file in files]
    for number, file in enumerate(files):
        if places[number] in places[:number]:
            return f"cannot write {file}: this command also uses it for something else; name another file"
    return None


def remove_earlier(options: argparse.Namespace) -> None:
    """Remove the files of an earlier command, which would stay if this one does not end. Raises OSError."""
    for _, file in _wanted(options):
        if is_replaced(file):
            file.unlink(missing_ok=True)


def write(options: argparse.Namespace, renderers: Renderers) -> None:
    """Write the requested files. Raises ResultsError: a file cannot be written."""
    for name, file in _wanted(options):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, renderers[name]())
        except OSError as error:
            raise ResultsError(f"cannot write {file}: {error.strerror}") from error


def _wanted(options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """The requested formats, each with its file."""
    for name in _FORMATS:
        if (file := getattr(options, name, None)) is not None:
            yield name, file


def of_run(options: argparse.Namespace, results: Results) -> Renderers:
    badge = endpoint if options.badge is not None and options.badge.suffix == ".json" else svg
    return {
        "markdown": lambda: markdown(digest(results)),
        "junit": lambda: junit(results),
        "sarif": lambda: sarif(digest(results)),
        "badge": lambda: badge(results),
    }


def in_github_actions(digest: Digest, expected: Iterable[str] = ()) -> None:
    """In a job, add to its summary and annotate lines. ``expected``: names of expected failures.

    Raises ResultsError.
    """

    def is_expected(card: Card) -> bool:
        return isinstance(card, CaseCard) and all(expectation(case, expected) is not None for case in card.cases)

    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) is not None:
        try:
            with open(summary, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(markdown(digest))
        except OSError as error:
            raise ResultsError(f"cannot write the job summary {summary}: {error.strerror}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(digest, is_expected):
            print(line)
