"""Shared by commands that show results: verbosity, errors of damaged files, the exit code."""

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
    """Prints how expectations turned out; returns the exit code. ``whole``: see `suite.configuration.judged`."""
    found = judged(results.cases, configuration, whole=whole and results.cut_off is None)
    for line in found.wrong:
        say(line, NOT_CONFORMING)
    if found.cases:
        others = results.failed - found.cases
        rest = f", {others} unexpected" if others else ""
        console.print(Text(f"{plural(found.cases, 'failure')} expected by {configuration.file}{rest}.", "bold"))
    unexpected = results.failed - found.cases
    judged_any = results.passed + results.failed > 0
    conforms = results.cut_off is None and judged_any and not unexpected and not found.wrong
    return CONFORMING if conforms else NOT_CONFORMING


@contextmanager
def blamed_on(files: Sequence[Path]) -> Iterator[None]:
    """The block renders these files. Well-formed lines may still fit no report: the file is damaged then.

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
            f"{names} cannot be rendered: one of them is {what}; run `conformance report` on each to find it"
        ) from error


def add_verbosity(parser: argparse.ArgumentParser, *, quiet: str, verbose: str | None = None) -> None:
    """Add the options with these help texts; without `verbose`, there is no `--verbose`.

    The value is a `conformance.report.terminal.Detail`, named `detail`.
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
        quiet="print only the verdict and one line per problem",
        verbose="also print each path, all problems, why cases did not run, unsupported features, choices of the "
        "trainer where several behaviours are valid, and laws that were not exercised",
    )
