"""The command line: one module for each command, with its SUMMARY, DESCRIPTION, arguments and `main`."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn, Protocol

import argcomplete
from rich.console import Console

from conformance.cli import (
    diff,
    init,
    judging,
    listing,
    merge,
    report,
    repro,
    run,
    smoke,
    trace,
    watch,
)
from conformance.cli.exits import HARNESS, INTERRUPTED, USAGE, robust, say
from conformance.report.command import shown
from conformance.report.text import SafeConsole, visible
from conformance.suite.configuration import ConfigurationError, configuration
from conformance.suite.options import add_defaults


class Command(Protocol):
    """What each of these modules has."""

    SUMMARY: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, options: argparse.Namespace, command: str, console: Console) -> int: ...


COMMANDS: dict[str, Command] = {
    "init": init,
    "run": run,
    "smoke": smoke,
    "list": listing,
    "report": report,
    "diff": diff,
    "merge": merge,
    "repro": repro,
    "trace": trace,
    "laws": listing.Laws,
    "explain": listing.Explain,
    "watch": watch,
}
#: Those that look into pyproject.toml.
_CONFIGURED = ("run", "smoke", "list", "report", "merge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness itself failed, 130 interrupted."""
    with robust():
        parser = _parser()
        argcomplete.autocomplete(parser)
        given = sys.argv[1:] if arguments is None else arguments
        if not given:
            parser.print_help()
            return USAGE
        try:
            options, given = _configured(parser, given)
        except ConfigurationError as error:
            return say(str(error), USAGE)
        command = "conformance " + shown(given)
        console = SafeConsole(highlight=False)
        if not console.width:
            # COLUMNS=0, as where a terminal has no size: nothing would be shown.
            console.width = 80
        try:
            return COMMANDS[options.action].main(options, command, console)
        except KeyboardInterrupt:
            return say("interrupted", INTERRUPTED)
        except Exception as error:
            print(visible(traceback.format_exc()), end="", file=sys.stderr)
            return say(f"the harness failed: {type(error).__name__}: {error}; this is a bug of conformance", HARNESS)


def _configured(parser: argparse.ArgumentParser, given: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """The options, and the whole command line, with what the project's pyproject.toml adds to that which is given.

    Raises ConfigurationError.
    """
    options = parser.parse_args(given)
    if options.action not in _CONFIGURED:
        add_defaults(options)
        return options, given
    found, selects = configuration(), judging.selects(options)
    if options.action != "report":  # its --output is a file
        given = [*given, *found.arguments(vars(options))]
        options = parser.parse_args(given)
    add_defaults(options)
    options.configuration, options.selects = found, selects
    return options, given


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        sys.exit(say(f"{message}; see: {self.prog} --help", USAGE))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="conformance",
        description="Proves that a PyTorch trainer averages gradients correctly in every path that it offers.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('trainer-conformance')}")
    actions = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(actions.add_parser(name, help=command.SUMMARY, description=command.DESCRIPTION))
    return parser
