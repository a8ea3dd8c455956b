"""``conformance diff``: what is different between two results files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.cli import judging
from conformance.cli.exits import CONFORMING, NOT_CONFORMING, USAGE, say
from conformance.report import comparison, html
from conformance.report.comparison import Comparison, markdown
from conformance.report.text import STYLES
from conformance.results import ResultsError, read_results

DESCRIPTION = (
    "Compare the results of two runs: which cases broke, were repaired, are new or gone, and which causes came and "
    "went. The exit code is 1 if a case that held does not any more, and for nothing else."
)
#: Of a section; a page has all.
MOST = {
    "quiet": {"text": 0, "markdown": 0},
    "normal": {"text": 20, "markdown": 50},
    "verbose": {"text": sys.maxsize, "markdown": sys.maxsize},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, help="the results file of the run before")
    parser.add_argument("new", type=Path, help="the results file of the run after")
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="what is printed (default: %(default)s)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of all differences, too")
    judging.add_verbosity(
        parser, quiet="print the verdict alone", verbose="print all differences, not only the first of each kind"
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    try:
        old, new = read_results(options.old), read_results(options.new)
        with judging.blamed_on([options.old, options.new]):
            found = comparison.compared(old, new)
            if options.html is not None:
                html.render_comparison(found, old, new, options.html)
    except ResultsError as error:
        return say(str(error), USAGE)
    if options.format == "markdown":
        # Not through the console, which would wrap lines.
        print("\n".join(markdown(found, MOST[options.detail]["markdown"])))
    else:
        _print(found, console, MOST[options.detail]["text"])
    return NOT_CONFORMING if found.broken else CONFORMING


def _print(found: Comparison, console: Console, most: int) -> None:
    for section in found.sections if most else ():
        console.print(Text(f"{section.title} ({len(section.lines)})", f"bold {STYLES[section.tone]}"))
        for name, what in section.lines[:most]:
            console.print(Text.assemble("  ", (name, "bold"), "  ", what))
        if len(section.lines) > most:
            console.print(Text(f"  and {len(section.lines) - most} more: --verbose shows all", "dim"))
    text, tone = found.verdict
    console.print(Text(text, f"bold {STYLES[tone]}"))
