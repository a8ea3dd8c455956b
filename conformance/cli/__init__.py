"""The command line: one module per command, with its DESCRIPTION, arguments and `main`."""

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

from conformance.adapter.declaration import did_you_mean
from conformance.cli.exits import HARNESS, INTERRUPTED, USAGE, robust, say
from conformance.report.command import shown
from conformance.report.text import SafeConsole, visible
from conformance.suite.configuration import ConfigurationError, configuration
from conformance.suite.options import SELECTING, add_defaults


class Command(Protocol):
    """The module of a command."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self, options: argparse.Namespace, command: str, console: Console) -> int: ...


#: By name: the place and the purpose of each command. Only the called one is imported.
COMMANDS = {
    "init": ("conformance.cli.init", "write an adapter to start from"),
    "run": ("conformance.cli.run", "train the standard workloads and judge each case"),
    "smoke": ("conformance.cli.smoke", "check in seconds that an adapter works at all"),
    "list": ("conformance.cli.listing", "list trainers, cases, workloads, laws or backends"),
    "report": ("conformance.cli.report", "render a results file again"),
    "diff": ("conformance.cli.diff", "compare two runs: regressions, fixed cases, new problems"),
    "merge": ("conformance.cli.merge", "merge the results of several runs into one report"),
    "repro": ("conformance.cli.repro", "write a standalone script that reproduces a failure"),
    "bisect": ("conformance.cli.bisect", "find the first release of a framework that fails a case"),
    "trace": ("conformance.cli.trace", "show what each rank of a case did"),
    "laws": ("conformance.cli.listing:Laws", "list the laws"),
    "explain": ("conformance.cli.listing:Explain", "explain a law: why it exists, its source, how to keep it"),
    "watch": ("conformance.cli.watch", "watch any training script; needs no adapter"),
}
#: Commands that read pyproject.toml.
_CONFIGURED = ("run", "smoke", "list", "report", "merge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness failed, 130 interrupted."""
    with robust():
        given = sys.argv[1:] if arguments is None else arguments
        try:
            if "_ARGCOMPLETE" in os.environ:
                argcomplete.autocomplete(_parser(os.environ["COMP_LINE"].split()[1:]))
            if not given:
                _parser(given).print_help()
                return USAGE
            if not given[0].startswith("-") and given[0] not in COMMANDS:
                hint = did_you_mean(given[0], COMMANDS) or "; see: conformance --help"
                return say(f"there is no command {given[0]!r}{hint}", USAGE)
            options, given = _configured(given)
            console = SafeConsole(highlight=False)
            if not console.width:
                # COLUMNS=0, or a terminal without a size.
                console.width = 80
            return _command(options.action).main(options, "conformance " + shown(given), console)
        except ConfigurationError as error:
            return say(str(error), USAGE)
        except KeyboardInterrupt:
            return say("interrupted", INTERRUPTED)
        except Exception as error:
            print(visible(traceback.format_exc()), end="", file=sys.stderr)
            return say(f"the harness failed: {type(error).__name__}: {error}; this is a bug in conformance", HARNESS)


def _command(name: str) -> Command:
    place, _ = COMMANDS[name]
    command: Command = resolve_name(place)
    return command


def _configured(given: Sequence[str]) -> tuple[argparse.Namespace, Sequence[str]]:
    """The options and the command line, with the options that pyproject.toml adds. Raises ConfigurationError."""
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
    """Reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        sys.exit(say(f"{message}; see: {self.prog} --help", USAGE))


def _parser(given: Sequence[str]) -> _Parser:
    """The parser of a command line, with the options of its command."""
    parser = _Parser(
        prog="conformance",
        description="Proves that a PyTorch trainer averages gradients correctly on every path that it supports.",
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
