"""``conformance smoke``: check in seconds that an adapter works at all."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing

from rich.console import Console
from rich.text import Text

from conformance.cli import judging
from conformance.cli.exits import CONFORMING, HARNESS, NOT_CONFORMING, USAGE, say
from conformance.oracle.faults import CATALOGUE
from conformance.report.card import cards
from conformance.report.terminal import print_card
from conformance.report.text import STYLES, plural
from conformance.report.verdicts import LOOKS
from conformance.results import Results
from conformance.results.records import PASSED, CaseRecord, Header
from conformance.runner.front.client import RunnerError
from conformance.suite.configuration import expectation
from conformance.suite.items import BadInput, Item, collect
from conformance.suite.options import add_options, add_trainers
from conformance.suite.running import run
from conformance.suite.servers import Servers

DESCRIPTION = (
    "Run one case for each backend and precision that a trainer supports, one after the other, without a report."
)
#: Exercises most of an adapter.
_WORKLOAD = "momentum"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainers(parser)
    add_options(parser.add_argument, only=("--backend", "--time-limit"))
    judging.add_verbosity(parser, quiet="print only the verdict")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    cases: list[CaseRecord] = []
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
                cases.append(case)
        except RunnerError as error:
            return say(f"the harness failed: {error}", HARNESS)
    rest = sum(item.verdict is None for item in planned)
    # A trainer that declines at run time neither passes nor fails.
    passed, failed = sum(case.verdict in PASSED for case in cases), sum(case.failed for case in cases)
    expected = sum(case.failed and expectation(case, options.configuration.expected) is not None for case in cases)
    if options.detail != "quiet":
        bugs = {fault.name: fault.text for fault in CATALOGUE}
        header = Header("", "", "", command, len(cases), bugs=bugs)
        for card in cards(Results(header, tuple(cases))):
            print_card(card, console)
    if not passed + failed:
        reason = next((item.reason for item in planned if item.verdict == "UNAVAILABLE"), None)
        why = f": {reason}" if reason else "; conformance list cases says why"
        return say(f"no case of these trainers can run here{why}", NOT_CONFORMING)
    trainers = "this trainer" if len({item.target for item in planned}) == 1 else "these trainers"
    line = f"{_said(passed, failed)} conformance run has {plural(rest, 'case')} for {trainers}."
    console.print(Text(f"\n{line}" if failed else line, "bold red" if failed else "bold green"), soft_wrap=True)
    if expected:
        console.print(Text(f"{plural(expected, 'failure')} expected by {options.configuration.file}."))
    return NOT_CONFORMING if failed > expected else CONFORMING


def _said(passed: int, failed: int) -> str:
    if failed:
        return f"{failed} of {plural(passed + failed, 'case')} failed."
    return f"{plural(passed, 'case')} passed, which is no proof yet:"


def chosen(items: Iterable[Item]) -> list[Item]:
    """One case for each trainer, backend and precision: the smallest one of the plainest workload."""
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
