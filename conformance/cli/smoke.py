"""``conformance smoke``: whether an adapter works at all, in seconds."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing

from rich.console import Console
from rich.text import Text

from conformance.cli import judging
from conformance.cli.exits import CONFORMING, HARNESS, NOT_CONFORMING, USAGE, say
from conformance.report.card import card_of
from conformance.report.text import STYLES, plural
from conformance.report.verdicts import LOOKS
from conformance.results.records import PASSED, CaseRecord
from conformance.runner.front.client import RunnerError
from conformance.suite.configuration import expectation
from conformance.suite.items import BadInput, Item, collect
from conformance.suite.options import add_options, add_trainers
from conformance.suite.running import run
from conformance.suite.servers import Servers

DESCRIPTION = (
    "Run one case for each backend and precision that a trainer declares, one after the other, without a report."
)
#: What shows most of an adapter, beside anything else.
_WORKLOAD = "momentum"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainers(parser)
    add_options(parser.add_argument, only=("--backend", "--time-limit"))
    judging.add_verbosity(parser, quiet="print the verdict alone")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    held = failed = expected = 0
    with closing(Servers(options.time_limit)) as servers:
        try:
            items = collect(servers, options.trainer, options.backend, ())
            wrong = [item.line for item in items if isinstance(item, BadInput)]
            for line in wrong:
                say(line, USAGE)
            if wrong:
                return USAGE
            planned = [item for item in items if not isinstance(item, BadInput)]
            for item in chosen(planned):
                case = run(item, servers, options.time_limit)
                if options.detail != "quiet":
                    _print(case, console)
                # One that declines at run time does neither.
                held, failed = held + (case.verdict in PASSED), failed + case.failed
                expected += case.failed and expectation(case, options.configuration.expected) is not None
        except RunnerError as error:
            return say(f"the harness failed: {error}", HARNESS)
    rest = sum(item.verdict is None for item in planned)
    if not held + failed:
        return say("no case of these trainers can be run here; conformance list cases says why", NOT_CONFORMING)
    trainers = "this trainer" if len({item.target for item in planned}) == 1 else "these trainers"
    line = f"{_said(held, failed)} `conformance run` has {plural(rest, 'case')} for {trainers}."
    console.print(Text(line, "bold red" if failed else "bold green"), soft_wrap=True)
    if expected:
        console.print(Text(f"{plural(expected, 'failure')} expected by {options.configuration.file}."))
    return NOT_CONFORMING if failed > expected else CONFORMING


def _said(held: int, failed: int) -> str:
    if held + failed == 1:
        return "The one case does not hold." if failed else "The one case holds, which is no proof."
    if failed:
        return f"{failed} of {held + failed} cases {'does' if failed == 1 else 'do'} not hold."
    return f"All {held} hold, which is no proof."


def chosen(items: Iterable[Item]) -> list[Item]:
    """One that can be run for each trainer, backend and precision: the smallest, of the plainest workload."""
    found: dict[tuple[str, str, str], Item] = {}
    for item in items:
        key = item.target, item.case.backend, item.case.precision
        if item.verdict is None and (key not in found or _size(item) < _size(found[key])):
            found[key] = item
    return list(found.values())


def _size(item: Item) -> tuple[bool, bool, int, int]:
    case = item.case
    return case.workload != _WORKLOAD, case.resumed_at is not None, case.world_size, case.accumulation


def _print(case: CaseRecord, console: Console) -> None:
    look = LOOKS[case.verdict]
    seconds = "" if case.seconds is None else f"  {case.seconds:.1f} s"
    console.print(Text.assemble((look.glyph, STYLES[look.tone]), f" {case.trainer}  {case.id}", (seconds, "dim")))
    if case.failed:
        for line in card_of(case).lines():
            console.print(Text(f"  {line}"), soft_wrap=True)
