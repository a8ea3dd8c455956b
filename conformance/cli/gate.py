"""Whether a command that judged cases ends well: all conform, but for failures that the project expects."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.text import Text

from conformance.cli.exits import CONFORMING, NOT_CONFORMING, say
from conformance.report.text import plural
from conformance.results import Results
from conformance.suite.configuration import Configuration
from conformance.suite.expected import judged

#: Options that select cases.
_SELECTING = ("trainer", "backend", "case")


def selects(options: argparse.Namespace) -> bool:
    """Whether the command line selects cases by itself, before the file's values are added."""
    return any(getattr(options, name, None) for name in _SELECTING)


def ended(results: Results, configuration: Configuration, console: Console, *, whole: bool) -> int:
    """The exit code; says what came of the expectations. ``whole``: as of `conformance.suite.expected.judged`."""
    found = judged(results.cases, configuration, whole=whole and results.cut_off is None)
    for line in found.wrong:
        say(line, NOT_CONFORMING)
    if found.cases:
        others = results.failed - found.cases
        rest = f", {others} {'is' if others == 1 else 'are'} not" if others else ""
        console.print(Text(f"{plural(found.cases, 'failure')} expected by {configuration.file}{rest}.", "bold"))
    unexpected = results.failed - found.cases
    judged_any = results.passed + results.failed > 0
    holds = results.cut_off is None and judged_any and not unexpected and not found.wrong
    return CONFORMING if holds else NOT_CONFORMING
