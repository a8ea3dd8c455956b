"""``conformance report``: render a results file again."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from conformance.cli import formats, judging
from conformance.cli.exits import USAGE, say
from conformance.cli.files import RESULTS, RunFolder, report_of, unwritable
from conformance.report import html, terminal
from conformance.results import ResultsError, read_results

DESCRIPTION = "Render a results file again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="a results file of `conformance run`")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the HTML file (default: next to the results)")
    judging.add_for_results(parser)
    formats.add_arguments(parser)


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    report = options.output or report_of(options.results)
    try:
        results = read_results(options.results)
    except ResultsError as error:
        return say(f"{error}{_what_else(options)}", USAGE)
    if (reason := unwritable(report)) is not None:
        return say(f"cannot write {report}: {reason}", USAGE)
    if (reason := formats.unwritable_file(options, options.results, report)) is not None:
        return say(reason, USAGE)
    try:
        with judging.blamed_on([options.results]), console.capture() as printed:
            terminal.render_notes(results.header.notes, console)
            terminal.render_terminal(results, console, report, options.detail)
            html.render_html(results, report)
            formats.write(options, formats.of_run(options, results))
    except (ResultsError, OSError) as error:
        return say(str(error), USAGE)
    console.file.write(printed.get())
    return judging.ended(results, options.configuration, console, whole=False)


def _what_else(options: argparse.Namespace) -> str:
    """A hint for results that cannot be read."""
    # Unlike the method of a path, this accepts names that are too long.
    if not os.path.exists(options.results):
        left = RunFolder(options.results.parent).unfinished() if os.path.isdir(options.results.parent) else []
        more = "continue it with conformance run --resume, or render it with conformance report"
        return f"; an unfinished run left {left[0]}: {more}" if left else ""
    report = report_of(options.results)
    if options.output is None and options.results.name == RESULTS and report.is_file():
        report.unlink()
        return f"; removed {report}, the report of other results"
    return ""
