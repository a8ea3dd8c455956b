"""The command line: one module for each command, with its DESCRIPTION, arguments and `main`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pkgutil import resolve_name
from typing import NoReturn, Protocol

import argcomplete
from rich.console import Console

from conformance.cli.exits import HARNESS, INTERRUPTED, USAGE, robust, say
from conformance.report.command import shown
from conformance.report.text import SafeConsole, visible
from conformance.suite.configuration import ConfigurationError, configuration
from conformance.suite.options import SELECTING, add_defaults


class Command(Protocol):
    """What the module of a command has."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, options: argparse.Namespace, command: str, console: Console) -> int: ...


#: By name: where a command is, and what it is for. Only the one that is called is imported.
COMMANDS = {
    "init": ("conformance.cli.init", "write an adapter to begin with"),
    "run": ("conformance.cli.run", "train the standard workloads and judge them"),
    "smoke": ("conformance.cli.smoke", "see in seconds whether an adapter works at all"),
    "list": ("conformance.cli.listing", "list trainers, cases, workloads, laws or backends"),
    "report": ("conformance.cli.report", "render a results file again"),
    "diff": ("conformance.cli.diff", "what broke, was repaired, is new or gone between two runs"),
    "merge": ("conformance.cli.merge", "put the results of several runs into one report"),
    "repro": ("conformance.cli.repro", "write a standalone script that shows why a case fails"),
    "bisect": ("conformance.cli.bisect", "find the first release of a framework that fails a case"),
    "trace": ("conformance.cli.trace", "show what each rank of a case did"),
    "laws": ("conformance.cli.listing:Laws", "list the laws that trainers are held to"),
    "explain": ("conformance.cli.listing:Explain", "explain a law: why it holds, its source, and how to keep it"),
    "watch": ("conformance.cli.watch", "watch any training script, without an adapter"),
}
#: Those that look into pyproject.toml.
_CONFIGURED = ("run", "smoke", "list", "report", "merge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness itself failed, 130 interrupted."""
    with robust():
        given = sys.argv[1:] if arguments is None else arguments
        try:
            if "_ARGCOMPLETE" in os.environ:
                argcomplete.autocomplete(_parser(os.environ["COMP_LINE"].split()[1:]))
            if not given:
                _parser(given).print_help()
                return USAGE
            options, given = _configured(given)
            console = SafeConsole(highlight=False)
            if not console.width:
                # COLUMNS=0, as where a terminal has no size: nothing would be shown.
                console.width = 80
            return _command(options.action).main(options, "conformance " + shown(given), console)
        except ConfigurationError as error:
            return say(str(error), USAGE)
        except KeyboardInterrupt:
            return say("interrupted", INTERRUPTED)
        except Exception as error:
            print(visible(traceback.format_exc()), end="", file=sys.stderr)
            return say(f"the harness failed: {type(error).__name__}: {error}; this is a bug of conformance", HARNESS)


def _command(name: str) -> Command:
    place, _ = COMMANDS[name]
    command: Command = resolve_name(place)
    return command


def _configured(given: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """The options, and the whole command line, with what the project's pyproject.toml adds to that which is given.

    Raises ConfigurationError.
    """
    parser = _parser(given)
    options = parser.parse_args(given)
    if options.action not in _CONFIGURED:
        add_defaults(options)
        return options, given
    found, selects = configuration(), any(getattr(options, name, None) for name in SELECTING)
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


def _parser(given: Sequence[str]) -> _Parser:
    """The parser of a command line, with the options of the command that it calls."""
    parser = _Parser(
        prog="conformance",
        description="Proves that a PyTorch trainer averages gradients correctly in every path that it offers.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('trainer-conformance')}")
    actions = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    for name, (_, summary) in COMMANDS.items():
        own = actions.add_parser(name, help=summary)
        if [*given[:1]] == [name]:
            command = _command(name)
            own.description = command.DESCRIPTION
            command.add_arguments(own)
    return parser
