"""``conformance repro``: write a standalone script that reproduces a failure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from argcomplete.completers import FilesCompleter
from rich.console import Console

from conformance.cli.exits import CONFORMING, HARNESS, USAGE, say
from conformance.cli.files import RESULTS, unwritable
from conformance.report.card import card_of
from conformance.report.causes import causes
from conformance.repro.proof import Written, written
from conformance.repro.script import why_not
from conformance.repro.showing import CannotShow
from conformance.repro.sources import CannotCopy
from conformance.results import ResultsError, read_results
from conformance.results.result_lines import CaseRecord
from conformance.runner.front.client import RunnerError, run_case
from conformance.suite.items import BadInput, Item, collect
from conformance.suite.options import add_options
from conformance.suite.servers import Servers
from conformance.verdict.judge import judge
from conformance.verdict.record import record

DESCRIPTION = (
    "Write a script that reproduces a failure without importing conformance. It has the trainer's own source, the data "
    "of the smallest case with the same problem, up to the first wrong step, and the correct answer. The command runs "
    "the script once before it keeps it. The exit code is 2 if no script reproduces the failure."
)
#: How many smaller cases with the same problem to try.
_SCRIPTS = 3
#: Lines of the script's output to print.
_LINES = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", metavar="CASE", help="id of a failing case, such as ddp-w2-acc2-fp32-momentum")
    trainer = parser.add_argument(
        "trainer",
        nargs="?",
        help="path.py, path.py:function, package.module:function, or a trainer of this package (default: that of "
        "the results)",
    )
    trainer.completer = FilesCompleter(("py",))  # type: ignore[attr-defined]
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help=f"results of a run, to find the smallest case in (default: {RESULTS})",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the script (default: repro-CASE.py)")
    add_options(parser.add_argument, only=("--time-limit",))


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    with closing(Servers(options.time_limit)) as servers:
        try:
            target, candidates = _candidates(options)
            return _written(target, candidates, servers, options, console)
        except (CannotCopy, CannotShow, ResultsError) as error:
            return say(str(error), USAGE)
        except RunnerError as error:
            return say(f"the harness failed: {error}", HARNESS)


def _candidates(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    """The trainer, and the ids of cases with the same problem: the smallest first, the given one last.

    The case of a named trainer may be in no results, or may have passed before a change.

    Raises CannotShow, ResultsError.
    """
    is_named = options.trainer is not None and options.results is None
    try:
        results = read_results(options.results or Path(RESULTS))
    except ResultsError:
        if is_named:
            return options.trainer, [options.case]
        raise
    known = [one for one in results.cases if options.trainer in (None, one.target)]
    given = [one for one in known if one.id == options.case]
    if is_named and not any(one.failed for one in given):
        return options.trainer, [options.case]
    if len({one.target for one in given}) > 1:
        names = " or ".join(one.target for one in given)
        raise CannotShow(f"several trainers have {options.case}: add {names}")
    if not given:
        raise CannotShow(f"no case {options.case} in these results; run it with conformance run --case {options.case}")
    [case] = given
    return case.target, _alike(case, [one for one in known if one.target == case.target])


def _alike(case: CaseRecord, cases: Sequence[CaseRecord]) -> list[str]:
    """The ids of cases with the problem of ``case``: the smallest first, it last. Raises CannotShow."""
    if not case.failed:
        raise CannotShow(f"{case.id} does not fail, so there is nothing to reproduce ({case.verdict}: {case.headline})")
    same = next(found for _, found in causes(cases) if any(one is case for one in found))
    smaller = sorted((one for one in same if one is not case and _steps(one) < _steps(case)), key=_steps)
    return [*(one.id for one in smaller), case.id]


def _steps(case: CaseRecord) -> tuple[bool, int, int, int, int]:
    """How much there is to read in the script of a case: a crash may happen anywhere."""
    first = case.first_difference.step if case.first_difference is not None else len(case.steps)
    return case.first_difference is None, case.world_size, len(case.parameters), case.accumulation, first


def _written(
    target: str, candidates: Sequence[str], servers: Servers, options: argparse.Namespace, console: Console
) -> int:
    """Raises CannotCopy, CannotShow, RunnerError."""
    output = options.output or Path(f"repro-{options.case}.py")
    if (reason := unwritable(output)) is not None:
        raise CannotShow(f"cannot write {output}: {reason}; name another file with --output")
    for id in dict.fromkeys([*candidates[:_SCRIPTS], candidates[-1]]):
        try:
            shown = show(_item(target, id, servers), servers, options.time_limit, output)
        except CannotShow:
            if id == candidates[-1]:
                raise
            continue
        smaller = "" if id == options.case else f", the smallest case with the problem of {options.case}"
        console.print(f"{output} reproduces {id}{smaller}. It exits with 1:", soft_wrap=True)
        # Warnings come first.
        for line in shown.lines[-_LINES:]:
            console.print(f"  {line}", soft_wrap=True, markup=False)
        return CONFORMING
    raise AssertionError("the last candidate raises")


def show(item: Item, servers: Servers, time_limit: float, output: Path, **how: Any) -> Written:
    """Run a case again, and write a script for it; ``how``: see `written`. Raises CannotCopy, CannotShow,
    RunnerError."""
    if (reason := why_not(item.case)) is not None:
        raise CannotShow(reason)
    server = servers.get(item.target, item.case.backend)
    outcome = run_case(server.run, item.case.spec(), time_limit)
    judgement = judge(item.case, outcome, server.declaration.behaviour)
    case = record(item.case, item.trainer, item.target, item.command, judgement, outcome.seconds)
    if not case.failed:
        raise CannotShow(f"{case.id} does not fail when it runs again ({case.verdict}): {case.headline}")
    return written(item.case, judgement, item.target, card_of(case), output, **how)


def _item(target: str, id: str, servers: Servers) -> Item:
    """Raises CannotShow, RunnerError."""
    for item in collect(servers, [target], [], [id]):
        if isinstance(item, BadInput):
            raise CannotShow(item.line)
        if item.case.id == id:
            if item.verdict is not None:
                raise CannotShow(f"{id} cannot run here: {item.reason}")
            return item
    raise CannotShow(f"no case has the id {id}; conformance list cases lists them")
