"""What a run or a report writes for CI systems, on request or where the environment asks for it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.cli.files import unwritable
from conformance.results import Results, ResultsError

#: By option: the ending of the file's name that is meant for it, and what is in it.
_OPTIONS = {
    "--markdown": ("FILE.md", "the causes of failure and the counts, as for a pull request"),
    "--junit": ("FILE.xml", "a test for each case, as JUnit does"),
    "--sarif": ("FILE.sarif", "a result for each cause, at the line that it names, for code scanning"),
    "--badge": ("FILE.svg", "a badge; FILE.json is one for shields.io"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "for CI",
        "In GitHub Actions, `run` adds its Markdown to the job's summary (GITHUB_STEP_SUMMARY) by itself, and prints "
        "an annotation for each cause.",
    )
    for option, (file, what) in _OPTIONS.items():
        group.add_argument(option, type=Path, metavar=file, help=f"also write {what}")


def unwritable_file(options: argparse.Namespace) -> str | None:
    """Why a file that is asked for cannot be written: one line."""
    for file in filter(None, (getattr(options, option.removeprefix("--")) for option in _OPTIONS)):
        if (reason := unwritable(file)) is not None:
            return f"cannot write {file}: {reason}"
    return None


def write(options: argparse.Namespace, results: Results) -> None:
    """Write what is asked for. Raises ResultsError: a file cannot be written."""
    for file, render in _wanted(options):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(render(results), encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"cannot write {file}: {error.strerror}") from error


def _wanted(options: argparse.Namespace) -> Iterator[tuple[Path, Callable[[Results], str]]]:
    from conformance.report.formats.badge import endpoint, svg
    from conformance.report.formats.junit import junit
    from conformance.report.formats.markdown import markdown
    from conformance.report.formats.sarif import sarif

    badge = endpoint if options.badge is not None and options.badge.suffix == ".json" else svg
    for file, render in (
        (options.markdown, markdown),
        (options.junit, junit),
        (options.sarif, sarif),
        (options.badge, badge),
    ):
        if file is not None:
            yield file, render


def in_github_actions(results: Results) -> None:
    """Add to the job's summary and annotate its lines, where there is a job. Raises ResultsError."""
    from conformance.report.formats.annotations import annotations
    from conformance.report.formats.markdown import markdown

    if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) is not None:
        try:
            with open(summary, "a", encoding="utf-8") as file:
                file.write(markdown(results))
        except OSError as error:
            raise ResultsError(f"cannot write the job's summary, {summary}: {error.strerror}") from error
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(results):
            print(line)
