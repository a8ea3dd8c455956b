"""``conformance run``: train the standard workloads and judge each case, with pytest."""

from __future__ import annotations

import argparse
import os
import signal
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from conformance.cli import formats, judging
from conformance.cli.engine import Engine
from conformance.cli.exits import (
    CONFORMING,
    HARNESS,
    INTERRUPTED,
    NOT_CONFORMING,
    USAGE,
    ended_like_ctrl_c,
    ignore,
    say,
)
from conformance.cli.files import REPORT, RESULTS, RunFolder, unwritable
from conformance.cli.unfinished_runs import CannotResume, earlier
from conformance.cli.versions import machine, sources
from conformance.launchers import NAMES, LaunchError
from conformance.launchers.hosts import Hosts
from conformance.launchers.joining import join
from conformance.report import html, terminal
from conformance.report.ci import digest
from conformance.report.command import relative
from conformance.results import ResultsError, read_results
from conformance.runner.front.client import RunnerError
from conformance.suite.options import add_options, add_trainers, whole_number

DESCRIPTION = """Train the standard workloads with one or more trainers, judge each case, and
write a report."""
EXAMPLES = """examples:
  conformance run                         all reference trainers
  conformance run my_trainer.py           everything that yours supports
  conformance run my_trainer.py --resume  the rest of an interrupted run
  conformance run my_trainer.py:train --backend ddp
  conformance run my_trainer.py --case ddp-w2-acc2-fp16-clip-value
  conformance run my_trainer.py --case world_size=2,precision=fp16

exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness failed,
130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    add_trainers(parser)
    add_options(parser.add_argument)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help=f"the folder for {RESULTS} and {REPORT} (default: the current one)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the finished cases of an interrupted run of the same command, and run the others",
    )
    parser.add_argument(
        "-n",
        "--processes",
        type=whole_number("processes"),
        metavar="N",
        help="cases at a time (default: one per core)",
    )
    parser.add_argument(
        "--launcher",
        choices=NAMES,
        help="run ranks on several machines, one case at a time: start this command on each machine with torchrun (or "
        "srun) or with horovodrun, or once for a Ray cluster (default: only this machine)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="HOST:PORT of the Ray cluster (default: the cluster of this machine)",
    )
    judging.add_for_results(parser)
    formats.add_arguments(parser)


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    with ended_like_ctrl_c():
        return _run(options, command, console)


def _run(options: argparse.Namespace, command: str, console: Console) -> int:
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
        hosts.time_limit = options.time_limit
    folder = RunFolder(options.output or Path())
    if (wrong := folder.unwritable() or formats.unwritable_file(options, *folder.files)) is not None:
        return say(wrong, USAGE)
    options.trainer = [*map(relative, options.trainer)]
    surroundings = machine(options.trainer, () if hosts is None else hosts.hosts)
    files = sources(options.trainer)
    found = None
    if options.resume:
        try:
            found = earlier(folder, options, add_arguments, version("trainer-conformance"), surroundings, files)
        except CannotResume as error:
            return say(str(error), USAGE)
        if found is None:
            print(f"Nothing to resume in {options.output or Path()}: running all cases.")
        for line in found.changes if found is not None else ():
            print(line)
    if options.traces is not None:
        reason = unwritable(Path(options.traces, "rank0.jsonl"))
        if reason is not None:
            return say(f"cannot write traces to {options.traces}: {reason}; name another folder", USAGE)
        # The workers of pytest may be elsewhere.
        options.traces = os.path.abspath(options.traces)

    def begin() -> None:
        folder.remove_report()
        formats.remove_earlier(options)

    quiet = options.detail == "quiet"
    engine = Engine(folder, command, surroundings, files, console, hosts, found, begin=begin, quiet=quiet)
    processes = options.processes or os.cpu_count() or 1
    engine.run(options.trainer, 1 if hosts else processes, vars(options))
    ignore(signal.SIGINT)
    return _finish(engine, folder, command, console, options)


def _finish(engine: Engine, folder: RunFolder, command: str, console: Console, options: argparse.Namespace) -> int:
    """Put the results in place, report them, and print errors; returns the exit code."""
    for line in engine.bad_input:
        say(line, USAGE)
    if engine.bad_input:
        return USAGE
    for line in engine.failures:
        say(f"the harness failed: {line}", HARNESS)
    code = NOT_CONFORMING
    if engine.recorded:
        try:
            results = read_results(folder.own)
            if results.footer is not None:
                with folder.placing() as (_, report):
                    html.render_html(results, report)
        except (ResultsError, OSError) as error:
            return say(f"the harness failed: {error}{_where(folder)}", HARNESS)
        terminal.render_terminal(results, console, None if results.footer is None else folder.report, options.detail)
        code = judging.ended(results, options.configuration, console, whole=not options.selects)
        try:
            formats.write(options, formats.of_run(options, results))
            formats.in_github_actions(digest(results), options.configuration.expected)
        except ResultsError as error:
            return say(f"{error}{_where(folder)}", HARNESS)
    else:
        folder.discard()
    if engine.failures:
        return HARNESS
    if engine.interrupted:
        if not engine.recorded:
            return say("interrupted before the first case finished", INTERRUPTED)
        resume = command if options.resume else f"{command} --resume"
        rest = f"; run the others with: {resume}" if engine.recorded < engine.planned else ""
        kept = f"interrupted with {engine.recorded} of {engine.planned} cases in {folder.results}"
        return say(kept + rest, INTERRUPTED)
    if not engine.recorded:
        return say("the harness failed: no case ran", HARNESS)
    return code


def _where(folder: RunFolder) -> str:
    if (kept := folder.kept()) is not None:
        return f"; the results are in {kept}"
    return f"; the results of this run are gone from {folder.results.parent}"


def _hosts(options: argparse.Namespace) -> Hosts | None:
    """The machines to run on; None in a process that served another one. Raises LaunchError."""
    try:
        return join(options.launcher, options.address)
    except RunnerError as error:
        raise LaunchError(f"the harness failed: {error}") from error
