"""``conformance merge``: merge the results of several runs into one file and one report."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from conformance.cli import judging
from conformance.cli.exits import USAGE, say
from conformance.cli.files import REPORT, RESULTS, RunFolder
from conformance.report import html, terminal
from conformance.results import ResultsError, ResultsWriter, read_results
from conformance.results.merging import merged

DESCRIPTION = "Merge the results of several runs, such as one CI job per backend, into one results file and one report."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+", help="results files of `conformance run`")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"the folder for {RESULTS} and {REPORT} (default: the current one)",
    )
    judging.add_for_results(parser)


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    folder = RunFolder(options.output or Path())
    if (wrong := folder.unwritable()) is not None:
        return say(wrong, USAGE)
    rendered = folder.own.with_suffix(".html")
    try:
        together = merged([(path, read_results(path)) for path in options.results], command)
        with ResultsWriter(folder.own, together.header) as writer:
            for case in together.cases:
                writer.case(case)
            if together.mutants is not None:
                writer.mutants(together.mutants)
        results = read_results(folder.own)
        with judging.blamed_on(options.results):
            html.render_html(results, rendered)
        # An input file may be in this place: only complete results replace it.
        with folder.placing() as (_, report):
            os.replace(rendered, report)
        with judging.blamed_on(options.results):
            terminal.render_notes(results.header.notes, console)
            terminal.render_terminal(results, console, folder.report, options.detail)
    except (ResultsError, OSError) as error:
        return say(str(error), USAGE)
    finally:
        folder.discard()
        rendered.unlink(missing_ok=True)
    return judging.ended(results, options.configuration, console, whole=False)
