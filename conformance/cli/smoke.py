"""``conformance smoke``: check in seconds that an adapter works at all."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.cases.case import Case
from conformance.cases.matrix import declared
from conformance.cli import judging
from conformance.cli.engine import Engine
from conformance.cli.exits import (
    CONFORMING,
    HARNESS,
    INTERRUPTED,
    NOT_CONFORMING,
    USAGE,
    ended_like_ctrl_c,
    say,
)
from conformance.cli.files import REPORT, RESULTS, RunFolder
from conformance.cli.versions import machine, sources
from conformance.report.card import cards
from conformance.report.html import render_html
from conformance.report.terminal import print_card
from conformance.report.text import STYLES, plural
from conformance.report.verdicts import LOOKS
from conformance.results import Results, read_results
from conformance.results.result_lines import PASSED, CaseRecord
from conformance.runner.front.client import RunnerError
from conformance.suite.configuration import judged
from conformance.suite.items import BadInput, Item, collect
from conformance.suite.options import DEFAULTS, add_options, add_trainers, whole_number
from conformance.suite.servers import Servers
from conformance.workloads.registry import asking

DESCRIPTION = """Run one case for each backend and precision that a trainer supports, a clip over accumulated
micro-batches, several epochs, and one case for each feature that it declares."""
#: Exercise most of an adapter; the second has two epochs, which end with short windows.
_WORKLOAD, _EPOCHS = "momentum", "short-epochs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trainers(parser)
    add_options(parser.add_argument, only=("--backend", "--time-limit"))
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"write {RESULTS} and {REPORT} to this folder (default: print the problems only)",
    )
    parser.add_argument(
        "-n",
        "--processes",
        type=whole_number("processes"),
        default=1,
        metavar="N",
        help="cases at a time (default: 1)",
    )
    judging.add_verbosity(parser, quiet="print only the verdict")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    with (
        ended_like_ctrl_c(),
        tempfile.TemporaryDirectory(prefix="conformance-smoke-") as temporary,
        closing(Servers(options.time_limit)) as servers,
    ):
        folder = RunFolder(options.output or Path(temporary))
        if (wrong := folder.unwritable()) is not None:
            return say(wrong, USAGE)
        try:
            items = collect(servers, options.trainer, options.backend, ())
        except RunnerError as error:
            return say(f"the harness failed: {error}", HARNESS)
        bad = [item.line for item in items if isinstance(item, BadInput)]
        for line in bad:
            say(line, USAGE)
        if bad:
            return USAGE
        planned = [item for item in items if not isinstance(item, BadInput)]
        if not (cases := dict.fromkeys(item.case.id for item in chosen(planned))):
            return _none(planned)
        surroundings, files = machine(options.trainer), sources(options.trainer)
        own = servers if options.processes == 1 else None
        engine = Engine(folder, command, surroundings, files, console, own, quiet=options.detail == "quiet")
        engine.run(options.trainer, options.processes, {**DEFAULTS, **vars(options), "case": [*cases], "traces": None})
        for line in (*engine.bad_input, *engine.failures):
            say(f"the harness failed: {line}", HARNESS)
        if engine.bad_input or engine.failures:
            return HARNESS
        results = read_results(folder.own)
        if options.output is not None:
            with folder.placing() as (_, report):
                render_html(results, report)
        return INTERRUPTED if engine.interrupted else _told(results, planned, options, console)


def _told(results: Results, planned: Sequence[Item], options: argparse.Namespace, console: Console) -> int:
    """Prints the results; returns the exit code."""
    # A trainer that declines at run time neither passes nor fails.
    passed, failed = sum(case.verdict in PASSED for case in results.cases), results.failed
    if options.detail != "quiet":
        for case in results.cases:
            _print(case, console)
        for card in cards(results):
            print_card(card, console)
    if not passed + failed:
        return _none(planned)
    expected = judged(results.cases, options.configuration, whole=False).cases
    trainers = "this trainer" if len({item.target for item in planned}) == 1 else "these trainers"
    rest = sum(item.verdict is None for item in planned)
    line = f"{_said(passed, failed)} conformance run has {plural(rest, 'case')} for {trainers}."
    console.print(Text(f"\n{line}" if failed else line, "bold red" if failed else "bold green"), soft_wrap=True)
    if expected:
        console.print(Text(f"{plural(expected, 'failure')} expected by {options.configuration.file}."))
    return NOT_CONFORMING if failed > expected else CONFORMING


def _none(planned: Sequence[Item]) -> int:
    reason = next((item.reason for item in planned if item.verdict == "UNAVAILABLE"), None)
    why = f": {reason}" if reason else "; conformance list cases says why"
    return say(f"no case of these trainers can run here{why}", NOT_CONFORMING)


def _said(passed: int, failed: int) -> str:
    if failed:
        return f"{failed} of {plural(passed + failed, 'case')} failed."
    return f"{plural(passed, 'case')} passed, which is no proof yet:"


def chosen(items: Iterable[Item]) -> list[Item]:
    """For each trainer, the smallest case of each backend and precision, and of each feature that these do not show."""
    found: list[Item] = []
    for _, each in groupby(items, lambda item: item.target):
        able = sorted((item for item in each if item.verdict is None), key=_size)
        shown = set[str]()
        for shows in (lambda case: {f"{case.backend} {case.precision}"}, _features):
            for item in able:
                if new := shows(item.case) - shown:
                    shown |= new | _features(item.case)
                    found.append(item)
    return found


def _features(case: Case) -> set[str]:
    """What a case shows of an adapter besides its training."""
    shown = declared(case)
    if asking(case.workload).clip is not None and case.layout == "accumulated":
        shown.add("clip over micro-batches")
    if case.workload == _EPOCHS:
        shown.add("epochs")
    return shown


def _size(item: Item) -> tuple[bool, bool, int, int]:
    case = item.case
    return case.workload != _WORKLOAD, case.resumed_at is not None, case.world_size, case.accumulation


def _print(case: CaseRecord, console: Console) -> None:
    look = LOOKS[case.verdict]
    seconds = "" if case.seconds is None else f"  {case.seconds:.1f} s"
    console.print(Text.assemble((look.glyph, STYLES[look.tone]), f" {case.trainer}  {case.id}", (seconds, "dim")))
