"""What commands that show results share: how much they print, whose fault a damaged file is, the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.cli.exits import CONFORMING, NOT_CONFORMING, say
from conformance.report.text import plural
from conformance.results import Results, ResultsError
from conformance.suite.configuration import Configuration, judged


def ended(results: Results, configuration: Configuration, console: Console, *, whole: bool) -> int:
    """The exit code; says what came of the expectations. ``whole``: as of `conformance.suite.configuration.judged`."""
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


@contextmanager
def blamed_on(files: Sequence[Path]) -> Iterator[None]:
    """The block renders what was read from these files. What their lines say may fit no report, although each of them
    is well-formed; that is no bug of ours.

    Raises ResultsError.
    """
    try:
        yield
    except (ResultsError, OSError):
        raise
    except Exception as error:
        what = f"damaged ({type(error).__name__}: {error})"
        if len(files) == 1:
            raise ResultsError(f"{files[0]} cannot be rendered: it is {what}") from error
        names = ", ".join(map(str, files))
        raise ResultsError(
            f"{names} cannot be rendered: one of them is {what}; `conformance report` on each says which"
        ) from error


def add_verbosity(parser: argparse.ArgumentParser, *, quiet: str, verbose: str | None = None) -> None:
    """Add the options, with what they do here; a command that has no more to say has no `--verbose`.

    The value is a `conformance.report.terminal.Detail`, under the name `detail`.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_const", const="quiet", dest="detail", help=quiet)
    if verbose is not None:
        group.add_argument("-v", "--verbose", action="store_const", const="verbose", dest="detail", help=verbose)
    parser.set_defaults(detail="normal")


def add_for_results(parser: argparse.ArgumentParser) -> None:
    """The options of commands that print the summary of results."""
    add_verbosity(
        parser,
        quiet="print the verdict alone, with a line for each cause of failure",
        verbose="also print why cases did not run, each path, all causes, what the trainer does where several ways are "
        "right, what it does not declare, and the laws that were not exercised",
    )
