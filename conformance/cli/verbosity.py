"""How much a command prints: `--quiet` and `--verbose`."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser, *, quiet: str, verbose: str | None = None) -> None:
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
    add_arguments(
        parser,
        quiet="print the verdict alone, with a line for each cause of failure",
        verbose="also print why cases did not run, each path, all causes, what the trainer does where several ways are "
        "right, what it does not declare, and the laws that were not exercised",
    )
