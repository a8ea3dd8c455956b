"""``conformance diff``: the differences between two results files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.cli import judging, outputs
from conformance.cli.exits import CONFORMING, NOT_CONFORMING, USAGE, say
from conformance.report import differences, html
from conformance.report.differences import Comparison, Section, markdown
from conformance.report.text import STYLES, print_beside
from conformance.results import ResultsError, read_results

DESCRIPTION = (
    "Compare the results of two runs: regressions, fixed cases, and problems that are new or fixed. Only cases that "
    "ran in both are compared. The exit code is 1 after a regression: a case that passed now fails."
)
#: Lines of a section.
MOST = {"text": 20, "markdown": 50}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="the results file of the earlier run")
    parser.add_argument("new", type=Path, help="the results file of the later run")
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="what to print (default: %(default)s)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page of all differences")
    judging.add_verbosity(
        parser, quiet="print only the verdict", verbose="print every difference, with new cases and those not compared"
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    try:
        old, new = read_results(options.old), read_results(options.new)
        with judging.blamed_on([options.old, options.new]):
            found = differences.compared(old, new)
            if options.html is not None:
                html.render_comparison(found, old, new, options.html)
    except ResultsError as error:
        return say(str(error), USAGE)
    is_verbose = options.detail == "verbose"
    sections = [one for one in found.sections if options.detail != "quiet" and (is_verbose or not one.is_detail)]
    most = sys.maxsize if is_verbose else MOST.get(options.format, 0)
    if options.format == "json":
        print(outputs.in_json(outputs.diff(found)))
    elif options.format == "markdown":
        # Not through the console, which would wrap lines.
        print("\n".join(markdown(found, sections, most)))
    else:
        _print(found, sections, console, most)
        if options.detail != "quiet":
            console.print(Text(f"\n{found.counts}"))
    return NOT_CONFORMING if found.regressions else CONFORMING


def _print(found: Comparison, sections: Sequence[Section], console: Console, most: int) -> None:
    text, tone = found.verdict
    console.print(Text(text, f"bold {STYLES[tone]}"))
    for section in sections:
        console.print(Text(f"\n{section.title} ({len(section.lines)})", f"bold {STYLES[section.tone]}"))
        for name, what in section.lines[:most]:
            print_beside(Text("  "), Text.assemble((name, "bold"), "  ", what), console)
        if len(section.lines) > most:
            console.print(Text(f"  and {len(section.lines) - most} more: --verbose shows all", "dim"))
