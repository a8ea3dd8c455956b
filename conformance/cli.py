"""The command line: ``conformance run``, ``report``, ``trace``, ``laws``, ``explain`` and ``exercise``.

pytest does the work of ``run``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from conformance.adapter.declaration import BACKENDS
from conformance.adapter.loading import reference_names
from conformance.launchers import NAMES, LaunchError
from conformance.plugin import TIME_LIMIT, time_limit

if TYPE_CHECKING:
    from conformance.launchers.hosts import Hosts

CONFORMING, NOT_CONFORMING, USAGE, HARNESS, INTERRUPTED = 0, 1, 2, 3, 130
RESULTS, REPORT = "conformance-results.jsonl", "conformance-report.html"
ANSWER_TIME_LIMIT = 5.0

ACTIONS = ("run", "report", "trace", "laws", "explain", "exercise")

EXAMPLES = """examples:
  conformance run                                     the reference trainers
  conformance run my_trainer.py                       all that yours declares
  conformance run my_trainer.py:train --backend ddp
  conformance run my_trainer.py --case ddp-w2-acc2-fp16-clip-value

exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness failed, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 conforming, 1 not conforming, 2 usage error, 3 the harness itself failed, 130 interrupted."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False)
    command = "conformance " + shlex.join(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.action == "run":
            return _run(options, command, console)
        if options.action == "trace":
            return _trace(options, console)
        if options.action == "report":
            return _report(options, console)
        if options.action == "exercise":
            return _exercise(options, console)
        return _laws(options, console)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output is gone; Python must not complain of that once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return HARNESS
    except Exception as error:
        traceback.print_exc()
        return _say(f"the harness failed: {type(error).__name__}: {error}; this is a bug of conformance", HARNESS)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage in front."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_say(f"{message}; see: {self.prog} --help", USAGE))


def _processes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="conformance",
        description="Proves that a PyTorch trainer averages gradients correctly in every path that it offers.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar=" | ".join(ACTIONS))
    run = actions.add_parser(
        "run",
        help="train the standard workloads and judge them",
        description="Train the standard workloads through one or more trainers, judge each case, write a report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "trainer",
        nargs="*",
        help="path.py, path.py:function, package.module:function, or one that comes with this package: "
        f"{', '.join(reference_names())} (default: all but those of frameworks)",
    )
    run.add_argument(
        "--backend",
        action="append",
        default=[],
        choices=BACKENDS,
        help="only this backend; may be given several times (default: all that the trainer declares)",
    )
    run.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="ID",
        help="only this case, or all whose id begins so, as in ddp-w2; may be given several times",
    )
    run.add_argument(
        "--output",
        type=Path,
        default=Path(),
        metavar="DIR",
        help=f"the folder for {RESULTS} and {REPORT} (default: the current one)",
    )
    run.add_argument(
        "--time-limit",
        type=time_limit,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help="how long a case may take before it is a HANG (default: %(default)g)",
    )
    run.add_argument(
        "--traces",
        type=Path,
        metavar="FOLDER",
        help="write what each rank of each case did to FOLDER/<trainer>/<case>/rank<r>.jsonl (default: do not)",
    )
    run.add_argument(
        "-n",
        "--processes",
        type=_processes,
        default=os.cpu_count() or 1,
        metavar="N",
        help="cases at a time (default: one a core)",
    )
    run.add_argument(
        "--launcher",
        choices=NAMES,
        help="run ranks on several machines, one case at a time: this command was started on each of them by torchrun "
        "(or srun) or by horovodrun, or a Ray cluster is to run them (default: this machine alone)",
    )
    run.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster, as HOST:PORT (default: that of this machine)",
    )
    report = actions.add_parser(
        "report", help="render a results file again", description="Render a results file again."
    )
    report.add_argument("results", type=Path, help="a results file that `conformance run` wrote")
    report.add_argument("--output", type=Path, metavar="FILE", help="the HTML file (default: beside the results)")
    actions.add_parser(
        "laws", help="list the laws that trainers are held to", description="List the laws that trainers are held to."
    )
    explain = actions.add_parser(
        "explain",
        help="print a law: why it is, where it stands, and how to keep it",
        description="Print a law: why it is, where it stands, and how to keep it. Of a chapter, list its laws.",
    )
    explain.add_argument("law", help="a law's id, as amp/unscale-before-clip, or a chapter's, as amp")
    trace = actions.add_parser(
        "trace",
        help="show what each rank of a case did",
        description="Show what each rank of a case did, from what `conformance run --traces FOLDER` wrote.",
    )
    trace.add_argument("folder", type=Path, help="the folder of one case: FOLDER/<trainer>/<case>")
    trace.add_argument(
        "--chrome",
        type=Path,
        metavar="FILE",
        help="write a Chrome trace instead, which Perfetto opens",
    )
    exercise = actions.add_parser(
        "exercise",
        help="check answers to the gradient-averaging exercise",
        description="Check answers to the gradient-averaging exercise: loss_mse, grad_point, grad_multi, train_loop, "
        "train_loop_batches and train_loop_distributed, called as the exercise calls them, on its own test cases and "
        "on others. What is missing is listed.",
    )
    exercise.add_argument("answers", type=Path, help="a Python file with some of these functions")
    exercise.add_argument(
        "--time-limit",
        type=time_limit,
        default=ANSWER_TIME_LIMIT,
        metavar="SECONDS",
        help="how long one call may take (default: %(default)g)",
    )
    return parser


def _run(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.report.html import render_html
    from conformance.report.terminal import render_terminal
    from conformance.results import ResultsError, read_results
    from conformance.suite.engine import Engine

    if options.address is not None and options.launcher != "ray":
        return _say("--address goes with --launcher ray", USAGE)
    hosts = None
    if options.launcher is not None:
        try:
            hosts = _hosts(options)
        except LaunchError as error:
            return _say(str(error), USAGE)
        if hosts is None:
            return CONFORMING
    results_file, report = options.output / RESULTS, options.output / REPORT
    for file in (results_file, report):
        reason = _unwritable(file)
        if reason is not None:
            return _say(f"cannot write {file}: {reason}; name another folder with --output", USAGE)
    if options.traces is not None:
        reason = _unwritable(options.traces / "rank0.jsonl")
        if reason is not None:
            return _say(f"cannot write traces to {options.traces}: {reason}; name another folder", USAGE)
    engine = Engine(results_file, command, console, hosts)
    selected = options.trainer, options.backend, options.case
    engine.run(*selected, options.time_limit, 1 if hosts else options.processes, options.traces)
    for line in engine.bad_input:
        _say(line, USAGE)
    if engine.bad_input:
        return USAGE
    for line in engine.failures:
        _say(f"the harness failed: {line}", HARNESS)
    conforming = False
    if engine.recorded:
        try:
            results = read_results(results_file)
            render_html(results, report)
        except ResultsError as error:
            return _say(f"the harness failed: {error}", HARNESS)
        render_terminal(results, console, report)
        conforming = results.conforming
    if engine.failures:
        return HARNESS
    if engine.interrupted:
        return _say(f"interrupted; {engine.recorded} of {engine.planned} cases are in {results_file}", INTERRUPTED)
    if not engine.recorded:
        return _say("the harness failed: no case was run", HARNESS)
    return CONFORMING if conforming else NOT_CONFORMING


def _hosts(options: argparse.Namespace) -> Hosts | None:
    """The machines to run on; None in a process that has served another one. Raises LaunchError."""
    from conformance.launchers.joining import join
    from conformance.runner.front.client import RunnerError

    try:
        return join(options.launcher, options.address)
    except RunnerError as error:
        raise LaunchError(f"the harness failed: {error}") from error


def _unwritable(file: Path) -> str | None:
    """Why ``file`` cannot be written, if it cannot. Its folder is made."""
    existed = file.exists()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("ab").close()
    except (FileExistsError, NotADirectoryError):
        return f"{file.parent} is not a folder"
    except OSError as error:
        return error.strerror
    if not existed:
        file.unlink()
    return None


def _report(options: argparse.Namespace, console: Console) -> int:
    from conformance.report.html import render_html
    from conformance.report.terminal import render_notes, render_terminal
    from conformance.results import ResultsError, read_results

    report = options.output or options.results.with_name(REPORT)
    try:
        results = read_results(options.results)
        render_html(results, report)
    except ResultsError as error:
        return _say(str(error), USAGE)
    render_notes(results.header.notes, console)
    render_terminal(results, console, report)
    return CONFORMING if results.conforming else NOT_CONFORMING


def _trace(options: argparse.Namespace, console: Console) -> int:
    from conformance.laws.checking import breaks
    from conformance.laws.run import Run
    from conformance.report.chrome import chrome
    from conformance.report.trace import render_trace
    from conformance.trace import file

    try:
        plan, ranks = file.read(options.folder)
    except file.TraceError as error:
        return _say(str(error), USAGE)
    if options.chrome is None:
        render_trace(ranks, console)
        return CONFORMING
    reason = _unwritable(options.chrome)
    if reason is not None:
        return _say(f"cannot write {options.chrome}: {reason}", USAGE)
    drawn = json.dumps(chrome(plan["case"], ranks, breaks(Run.read(plan, ranks))), ensure_ascii=False)
    options.chrome.write_text(drawn, encoding="utf-8", errors="backslashreplace")
    console.print(f"{options.chrome}: open it in https://ui.perfetto.dev", soft_wrap=True)
    return CONFORMING


def _laws(options: argparse.Namespace, console: Console) -> int:
    from conformance.laws.explain import UnknownLaw, explained, listing

    try:
        console.print(listing() if options.action == "laws" else explained(options.law))
    except UnknownLaw as error:
        return _say(str(error), USAGE)
    return CONFORMING


def _exercise(options: argparse.Namespace, console: Console) -> int:
    from conformance.exercise.answers import Answers, UnreadableAnswers
    from conformance.exercise.questions import QUESTIONS

    if find_spec("hypothesis") is None:
        install = 'pip install "trainer-conformance[exercise]"'
        return _say(f"hypothesis, which looks for inputs that an answer gets wrong, is not installed: {install}", USAGE)
    from conformance.exercise.checking import checked
    from conformance.exercise.terminal import told

    try:
        with Answers(options.answers, options.time_limit) as answers:
            if answers.names.isdisjoint(QUESTIONS):
                trouble = f" (reading it ended early, at {answers.trouble})" if answers.trouble else ""
                asked = ", ".join(QUESTIONS)
                return _say(f"{options.answers}: it has none of the exercise's functions{trouble}: {asked}", USAGE)
            findings = checked(answers)
    except UnreadableAnswers as error:
        return _say(str(error), USAGE)
    console.print(told(answers, findings))
    wrong = answers.trouble is not None or any(finding.state == "wrong" for finding in findings)
    return NOT_CONFORMING if wrong else CONFORMING


def _say(line: str, code: int) -> int:
    print(f"conformance: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
