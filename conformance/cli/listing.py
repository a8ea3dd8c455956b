"""``conformance list``, ``laws`` and ``explain``: the names that other commands take, and the laws."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.adapter.backends import BACKENDS
from conformance.adapter.loading import missing_requirements, reference_names, stated
from conformance.cli import outputs
from conformance.cli.exits import CONFORMING, HARNESS, USAGE, say
from conformance.laws.explain import UnknownLaw, explained, listing, named
from conformance.laws.law import catalogue
from conformance.report.laws import page_of
from conformance.runner.front.client import RunnerError
from conformance.suite.items import BadInput, collect
from conformance.suite.options import add_options, add_trainers
from conformance.suite.servers import Servers
from conformance.workloads.registry import STANDARD, asking

DESCRIPTION = "List the trainers, cases, workloads, laws or backends that other commands take."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar=" | ".join(_LISTS))
    for kind, (summary, _) in _LISTS.items():
        parser = kinds.add_parser(kind, help=summary, description=f"List {summary}.")
        parser.set_defaults(format="text")
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
            # One line each in any width: programs read it.
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
    "trainers": ("the trainers of this package, their backends and requirements", _trainers),
    "cases": ("the cases of a run with these options", _cases),
    "workloads": ("the workloads, and the bugs that each one shows", _workloads),
    "laws": ("the laws", lambda options, console: Laws.main(options, "", console)),
    "backends": ("the ways to average gradients, and their requirements", _backends),
}


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="what to print (default: %(default)s)"
    )


class Laws:
    """``conformance laws``."""

    DESCRIPTION = "List the laws that trainers, and scripts under `conformance watch`, must keep."
    add_arguments = staticmethod(_add_format)

    @staticmethod
    def main(options: argparse.Namespace, command: str, console: Console) -> int:
        if options.format == "json":
            print(outputs.in_json(outputs.laws(catalogue())))
        else:
            console.print(listing())
        return CONFORMING


class Explain:
    """``conformance explain``."""

    DESCRIPTION = "Explain a law: why it exists, its source, and how to keep it. For a chapter, list its laws."

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("law", help="id of a law, such as amp/unscale-before-clip, or of a chapter, such as amp")
        _add_format(parser)

    @staticmethod
    def main(options: argparse.Namespace, command: str, console: Console) -> int:
        try:
            if options.format == "json":
                print(outputs.in_json(outputs.laws(named(options.law))))
            else:
                console.print(explained(options.law))
                for law in named(options.law)[:1] if "/" in options.law else []:
                    console.print(Text(f"\n{page_of(law.id)}"), soft_wrap=True)
        except UnknownLaw as error:
            return say(str(error), USAGE)
        return CONFORMING
