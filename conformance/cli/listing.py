"""``conformance list``, ``laws`` and ``explain``: what there is to run, to hold trainers to and to run them on."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import missing_requirements, reference_names, stated
from conformance.cli.exits import CONFORMING, HARNESS, USAGE, say
from conformance.laws.explain import UnknownLaw, explained, listing
from conformance.runner.front.client import RunnerError
from conformance.suite.items import BadInput, collect
from conformance.suite.options import add_options, add_trainers
from conformance.suite.servers import Servers
from conformance.workloads.registry import STANDARD, asking

DESCRIPTION = "List what can be named in other commands: trainers, cases, workloads, laws or backends."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar=" | ".join(_LISTS))
    for kind, (summary, _) in _LISTS.items():
        parser = kinds.add_parser(kind, help=summary, description=f"List {summary}.")
        if kind == "cases":
            add_trainers(parser)
            add_options(parser.add_argument, only=("--backend", "--case", "--thorough"))


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    return _LISTS[options.kind][1](options, console)


def _trainers(options: argparse.Namespace, console: Console) -> int:
    rows = []
    for name in reference_names():
        if (declaration := stated(name)) is not None:
            missing = missing_requirements(declaration)
            rows.append((name, ", ".join(declaration.backends), f"needs {', '.join(missing)}" if missing else ""))
    console.print(_table(rows))
    return CONFORMING


def _cases(options: argparse.Namespace, console: Console) -> int:
    with closing(Servers()) as servers:
        try:
            items = collect(servers, options.trainer, options.backend, options.case, thorough=options.thorough)
        except RunnerError as error:
            return say(f"the harness failed: {error}", HARNESS)
    several = len({item.target for item in items}) > 1
    for item in items:
        if isinstance(item, BadInput):
            say(item.line, USAGE)
        else:
            # A line each, however narrow the terminal: programs read it.
            name = f"{item.trainer}:{item.case.id}" if several else item.case.id
            console.print(Text(f"{name}  {item.verdict}: {item.reason}" if item.verdict else name), soft_wrap=True)
    return USAGE if any(isinstance(item, BadInput) for item in items) else CONFORMING


def _workloads(options: argparse.Namespace, console: Console) -> int:
    console.print(_table((name, asking(name).summary) for name in STANDARD))
    return CONFORMING


def _backends(options: argparse.Namespace, console: Console) -> int:
    console.print(_table((name, backend.paths, _needs(backend.package)) for name, backend in BACKENDS.items()))
    return CONFORMING


def _needs(package: str | None) -> str:
    return "" if package is None else f"needs {package}"


def _table(rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


_LISTS: dict[str, tuple[str, Callable[[argparse.Namespace, Console], int]]] = {
    "trainers": ("the trainers that come with this package, on which backends, and what they need", _trainers),
    "cases": ("the cases that a run with these options has", _cases),
    "workloads": ("what is trained, and which mistakes each shows", _workloads),
    "laws": ("the laws that trainers are held to", lambda options, console: Laws.main(options, "", console)),
    "backends": ("how gradients are averaged, and what that needs", _backends),
}


class Laws:
    """``conformance laws``."""

    DESCRIPTION = "List the laws that trainers are held to, and those of scripts that are watched."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """It takes none."""

    @staticmethod
    def main(options: argparse.Namespace, command: str, console: Console) -> int:
        console.print(listing())
        return CONFORMING


class Explain:
    """``conformance explain``."""

    DESCRIPTION = "Explain a law: why it holds, its source, and how to keep it. For a chapter, list its laws."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "law", help="the id of a law, such as amp/unscale-before-clip, or of a chapter, such as amp"
        )

    @staticmethod
    def main(options: argparse.Namespace, command: str, console: Console) -> int:
        try:
            console.print(explained(options.law))
        except UnknownLaw as error:
            return say(str(error), USAGE)
        return CONFORMING
