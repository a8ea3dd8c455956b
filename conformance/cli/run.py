"""``conformance run``: train the standard workloads and judge them. pytest does the work."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from conformance.adapter.loading import reference_names
from conformance.cli.exits import CONFORMING, HARNESS, INTERRUPTED, NOT_CONFORMING, USAGE, say
from conformance.cli.files import REPORT, RESULTS, unwritable
from conformance.launchers import NAMES, LaunchError
from conformance.suite.options import add_options

if TYPE_CHECKING:
    from conformance.launchers.hosts import Hosts

SUMMARY = "train the standard workloads and judge them"
DESCRIPTION = "Train the standard workloads through one or more trainers, judge each case, write a report."
EXAMPLES = """examples:
  conformance run                                     the reference trainers
  conformance run my_trainer.py                       all that yours declares
  conformance run my_trainer.py:train --backend ddp
  conformance run my_trainer.py --case ddp-w2-acc2-fp16-clip-value
  conformance run my_trainer.py --case world_size=2,precision=fp16

exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness failed, 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "trainer",
        nargs="*",
        help="path.py, path.py:function, package.module:function, or one that comes with this package: "
        f"{', '.join(reference_names())} (default: all but those of frameworks)",
    )
    add_options(parser.add_argument)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR",
        help=f"the folder for {RESULTS} and {REPORT} (default: the current one)",
    )
    parser.add_argument(
        "-n",
        "--processes",
        type=_processes,
        default=os.cpu_count() or 1,
        metavar="N",
        help="cases at a time (default: one for each core)",
    )
    parser.add_argument(
        "--launcher",
        choices=NAMES,
        help="run ranks on several machines, one case at a time: this command was started on each of them by torchrun "
        "(or srun) or by horovodrun, or a Ray cluster runs them (default: only this machine)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster, as HOST:PORT (default: that of this machine)",
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.cli.engine import Engine
    from conformance.report.html import render_html
    from conformance.report.terminal import render_terminal
    from conformance.results import ResultsError, read_results

    if options.address is not None and options.launcher != "ray":
        return say("--address needs --launcher ray", USAGE)
    hosts = None
    if options.launcher is not None:
        try:
            hosts = _hosts(options)
        except LaunchError as error:
            return say(str(error), USAGE)
        if hosts is None:
            return CONFORMING
    results_file, report = options.output / RESULTS, options.output / REPORT
    for file in (results_file, report):
        reason = unwritable(file)
        if reason is not None:
            return say(f"cannot write {file}: {reason}; name another folder with --output", USAGE)
    if options.traces is not None:
        reason = unwritable(Path(options.traces, "rank0.jsonl"))
        if reason is not None:
            return say(f"cannot write traces to {options.traces}: {reason}; name another folder", USAGE)
        # The workers of pytest may be elsewhere.
        options.traces = os.path.abspath(options.traces)
    engine = Engine(results_file, command, console, hosts)
    engine.run(options.trainer, 1 if hosts else options.processes, vars(options))
    for line in engine.bad_input:
        say(line, USAGE)
    if engine.bad_input:
        return USAGE
    for line in engine.failures:
        say(f"the harness failed: {line}", HARNESS)
    conforming = False
    if engine.recorded:
        try:
            results = read_results(results_file)
            render_html(results, report)
        except ResultsError as error:
            return say(f"the harness failed: {error}", HARNESS)
        render_terminal(results, console, report)
        conforming = results.conforming
    if engine.failures:
        return HARNESS
    if engine.interrupted:
        return say(f"interrupted; {engine.recorded} of {engine.planned} cases are in {results_file}", INTERRUPTED)
    if not engine.recorded:
        return say("the harness failed: no case was run", HARNESS)
    return CONFORMING if conforming else NOT_CONFORMING


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; write a whole number from 1")
    return int(text)


def _hosts(options: argparse.Namespace) -> Hosts | None:
    """The machines to run on; None in a process that served another one. Raises LaunchError."""
    from conformance.launchers.joining import join
    from conformance.runner.front.client import RunnerError

    try:
        return join(options.launcher, options.address)
    except RunnerError as error:
        raise LaunchError(f"the harness failed: {error}") from error
