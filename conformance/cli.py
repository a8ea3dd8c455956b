"""The command line: ``conformance run`` and ``conformance report``. pytest does the work."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from conformance.plugin import TIME_LIMIT

CONFORMING, NOT_CONFORMING, USAGE, HARNESS = 0, 1, 2, 3
RESULTS, REPORT = "conformance-results.jsonl", "conformance-report.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness itself failed."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    command = "conformance " + shlex.join(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.action == "run":
            return _run(options, command, console)
        return _report(options, console)
    except BrokenPipeError:
        # Whoever read our output is gone; Python must not complain of that once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return HARNESS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="conformance",
        description="Proves that a PyTorch trainer averages gradients correctly in every path that it offers.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="run | report")
    run = actions.add_parser(
        "run",
        help="train the standard workloads and judge them",
        description="Train the standard workloads through one or more trainers, judge each case, write a report.",
        epilog="exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness itself failed",
    )
    run.add_argument(
        "trainer",
        nargs="*",
        help="path.py, path.py:function, package.module:function, or the name of a reference trainer "
        "(default: all reference trainers)",
    )
    run.add_argument(
        "--backend", action="append", default=[], choices=("single", "ddp", "horovod"), help="only this one"
    )
    run.add_argument("--case", action="append", default=[], metavar="ID", help="only this case, or ids that begin so")
    run.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where the results go (default: here)")
    run.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="of one case (default: %(default)g)",
    )
    run.add_argument(
        "-n",
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="cases at a time (default: one a core)",
    )
    report = actions.add_parser(
        "report", help="render a results file again", description="Render a results file again."
    )
    report.add_argument("results", type=Path, help="a results file that `conformance run` wrote")
    report.add_argument("--output", type=Path, metavar="FILE", help="the HTML file (default: beside the results)")
    return parser


def _run(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.report import ResultsError, read_results
    from conformance.report.html import render_html
    from conformance.report.terminal import render_terminal
    from conformance.suite.engine import Engine

    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _usage(f"cannot write to {options.output}: {error.strerror}; name another folder with --output")
    path = options.output / RESULTS
    engine = Engine(path, command, console)
    try:
        engine.run(options.trainer, options.backend, options.case, options.time_limit, options.processes)
    except ResultsError as error:
        return _usage(str(error))
    if engine.bad_input:
        for line in engine.bad_input:
            _usage(line)
        return USAGE
    if engine.recorded:
        results = read_results(path)
        report = options.output / REPORT
        render_html(results, report)
        render_terminal(results, console, report)
    for line in engine.failures:
        print(f"conformance: the harness failed: {line}", file=sys.stderr)
    if engine.failures or not engine.recorded:
        return HARNESS
    return CONFORMING if results.conforming else NOT_CONFORMING


def _report(options: argparse.Namespace, console: Console) -> int:
    from conformance.report import ResultsError, read_results
    from conformance.report.html import render_html
    from conformance.report.terminal import render_terminal

    try:
        results = read_results(options.results)
    except ResultsError as error:
        return _usage(str(error))
    report = options.output or options.results.with_name(REPORT)
    render_html(results, report)
    render_terminal(results, console, report)
    return CONFORMING if results.conforming else NOT_CONFORMING


def _usage(line: str) -> int:
    print(f"conformance: {line}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
