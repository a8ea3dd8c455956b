"""``conformance report``: render a results file again."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from conformance.cli.exits import CONFORMING, NOT_CONFORMING, USAGE, say
from conformance.cli.files import REPORT

SUMMARY = "render a results file again"
DESCRIPTION = "Render a results file again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="a results file that `conformance run` wrote")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the HTML file (default: beside the results)")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.report.html import render_html
    from conformance.report.terminal import render_notes, render_terminal
    from conformance.results import ResultsError, read_results

    report = options.output or options.results.with_name(REPORT)
    try:
        results = read_results(options.results)
        render_html(results, report)
    except ResultsError as error:
        return say(str(error), USAGE)
    render_notes(results.header.notes, console)
    render_terminal(results, console, report)
    return CONFORMING if results.conforming else NOT_CONFORMING
