"""``conformance watch``: watch any training script."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from math import inf
from pathlib import Path
from time import monotonic

from rich.console import Console

from conformance.cli import formats, outputs
from conformance.cli.exits import (
    CONFORMING,
    HARNESS,
    INTERRUPTED,
    NOT_CONFORMING,
    UNDECIDED,
    USAGE,
    ended_like_ctrl_c,
    say,
)
from conformance.cli.files import WATCH_REPORT, OutputFolder
from conformance.report.ci import markdown, sarif
from conformance.report.command import shown
from conformance.report.text import SafeConsole, write
from conformance.results import ResultsError
from conformance.suite.configuration import ConfigurationError, configuration
from conformance.suite.options import whole_number
from conformance.watch.judging.findings import Findings
from conformance.watch.judging.properties import VALUES, Property
from conformance.watch.judging.watch_judge import Judge
from conformance.watch.recording.settings import Settings
from conformance.watch.report.digest import digest
from conformance.watch.report.junit import junit
from conformance.watch.report.watch_page import page
from conformance.watch.report.watch_terminal import render
from conformance.watch.verdict import Outcome, outcome, stated
from conformance.watch.watching import GRACE, CannotStart, NoRoom, Watched, watch

DESCRIPTION = """Run a training script unchanged and check ten properties of its steps: whether
each step uses the mean gradient of all ranks and micro-batches; whether
gradients are cleared, unscaled and clipped in time; whether the ranks agree;
and which data, schedules and parameters they use. Each property is PROVEN,
WRONG or OPEN."""
EPILOG = """properties and their values; the first one is expected unless you state another:
{values}

examples:
  conformance watch -- python train.py
  conformance watch -- torchrun --nproc-per-node=2 train.py --epochs 1
  conformance watch --expect ranks=sum --strict -- python train.py
  conformance watch --format json -- python train.py > watch.json

exit codes: 0 conforms, 1 does not conform, 2 usage error, 3 the harness failed,
4 undecided; if the script fails, its own exit code (130 after Ctrl-C)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "conformance watch [options] -- COMMAND ..."
    parser.epilog = EPILOG.format(values="\n".join(f"  {of.value:14} {', '.join(VALUES[of])}" for of in Property))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--steps",
        type=whole_number("steps"),
        metavar="N",
        help="watch the first N steps of each optimizer only; the script runs to its end",
    )
    parser.add_argument("--every", type=whole_number("steps"), default=1, metavar="N", help="check one window in N")
    parser.add_argument("--stop", action="store_true", help="end the script at the first violation")
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="time for the script to end after Ctrl-C or SIGTERM (default: 30); a second signal kills it",
    )
    parser.add_argument(
        "--expect",
        type=_expectation,
        action="append",
        metavar="PROPERTY=VALUE",
        help="what the script does on purpose, such as ranks=sum; may be given several times",
    )
    parser.add_argument("--strict", action="store_true", help="fail if a property is OPEN")
    parser.add_argument("--output", type=Path, metavar="DIR", help="the folder for an HTML report (default: no report)")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="what to print (default: %(default)s); with json, the script's output goes to standard error",
    )
    formats.add_arguments(parser, formats.OF_A_WATCH)
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the command that starts the script"
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    try:
        expected = _written() | dict(options.expect or ())
    except ConfigurationError as error:
        return say(str(error), USAGE)
    if not script:
        return say("no command to watch; write: conformance watch -- python train.py", USAGE)
    in_json = options.format == "json"
    if in_json:
        console = SafeConsole(stderr=True, highlight=False)
    # Otherwise the script's own output would be written into the line.
    shows = sys.stderr.isatty() and not sys.stdout.isatty() and not in_json
    folder = None if options.output is None else OutputFolder(options.output, WATCH_REPORT)
    if (wrong := _why_not(options, folder, script)) is not None:
        return say(wrong, USAGE)
    try:
        with ended_like_ctrl_c():
            settings = Settings(options.steps, options.every)
            grace = GRACE if options.grace is None else options.grace
            see = _live(monotonic(), stop=options.stop, shows=shows)
            watched = watch(script, see, settings, grace, output=2 if in_json else None)
    except NoRoom as error:
        return say(str(error), USAGE)
    except CannotStart as error:
        if script[0].endswith(".py") and Path(script[0]).is_file():
            python = f"write: conformance watch -- python {shown(script)}"
            return say(f"{shown(script[:1])} is a file, not a command; {python}", USAGE)
        missing = "/" not in script[0] and shutil.which(script[0]) is None
        hint = "; install it, or activate the environment that has it" if missing else ""
        return say(f"{shown(script[:1])} cannot be started: {error}{hint}", USAGE)
    if shows:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    if in_json:
        code = None if watched.code is None else _as_in_a_shell(watched.code)
        print(outputs.in_json(outputs.watch(watched.findings, script, expected, code)))
    else:
        render(watched.findings, script, console, expected)
    try:
        with redirect_stdout(sys.stderr if in_json else sys.stdout):
            _write(watched.findings, script, expected, options, folder, console)
    except (OSError, ResultsError) as error:
        return say(f"the report cannot be written: {error}", _as_in_a_shell(watched.code) or HARNESS)
    return _ended(watched, script, expected, options)


def _why_not(options: argparse.Namespace, folder: OutputFolder | None, script: Sequence[str]) -> str | None:
    """One line: why the files of this watch cannot be written. None if they can; earlier ones are removed then.

    A command that cannot be started leaves earlier files.
    """
    if folder is not None and (wrong := folder.unwritable()) is not None:
        return wrong
    if (wrong := formats.unwritable_file(options, *(folder.files if folder is not None else ()))) is not None:
        return wrong
    if shutil.which(script[0]) is not None:
        try:
            if folder is not None:
                folder.remove_report()
            formats.remove_earlier(options)
        except OSError as error:
            return f"cannot remove {error.filename}: {error.strerror}; name another file"
    return None


def _write(
    findings: Findings,
    script: Sequence[str],
    expected: Mapping[Property, str],
    options: argparse.Namespace,
    folder: OutputFolder | None,
    console: Console,
) -> None:
    """Write the report and the files for CI. Raises OSError, ResultsError."""
    whole = digest(findings, script, expected)
    if folder is not None:
        with folder.placing() as [report]:
            write(report, page(findings, script, expected))
        console.print(f"\nReport: {report}", markup=False, soft_wrap=True)
    formats.write(
        options,
        {
            "markdown": lambda: markdown(whole),
            "junit": lambda: junit(findings, script, expected),
            "sarif": lambda: sarif(whole),
        },
    )
    formats.in_github_actions(whole)


def _ended(
    watched: Watched, script: Sequence[str], expected: Mapping[Property, str], options: argparse.Namespace
) -> int:
    """Prints how the script ended, if it failed; returns the exit code."""
    code = _as_in_a_shell(watched.code)
    if watched.was_killed:
        say("the script did not end in time and was killed; give it more time with --grace", INTERRUPTED)
    if watched.was_stopped:
        return say("the script was ended at the first violation (--stop)", NOT_CONFORMING)
    if watched.by is not None:
        say(f"interrupted by {watched.by.name}; the verdict covers the steps until then", INTERRUPTED)
    elif code:
        say(f"the script itself failed with exit code {code}: {shown(script)}", code)
    return code or _exit(outcome(watched.findings, expected), strict=options.strict)


def _written() -> dict[Property, str]:
    """The expectations in pyproject.toml. Raises ConfigurationError."""
    found = configuration()
    try:
        return dict(stated(f"{name}={value}") for name, value in found.watch.items())
    except ValueError as error:
        raise ConfigurationError(f"{found.file}: [tool.conformance.watch] expect: {error}") from error


def _exit(of: Outcome, *, strict: bool) -> int:
    if of.verdict == "UNDECIDED":
        return UNDECIDED
    return CONFORMING if of.verdict == "CONFORMS" and not (strict and of.open) else NOT_CONFORMING


def _as_in_a_shell(code: int | None) -> int:
    """An exit code as a shell has it; `code` is negative for a signal."""
    return 0 if code is None else code if code >= 0 else 128 - code


def _expectation(text: str) -> tuple[Property, str]:
    try:
        return stated(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; write a number from 0")
    return seconds


def _live(start: float, *, stop: bool, shows: bool) -> Callable[[Judge], bool]:
    """Shows the progress; its result is whether to stop."""

    def see(judge: Judge) -> bool:
        findings = judge.findings
        if shows:
            print(
                f"\rwatching: {findings.steps} steps, {findings.conserved} correct, {len(findings.causes)} problems, "
                f"{monotonic() - start:.0f} s ",
                end="",
                file=sys.stderr,
                flush=True,
            )
        return stop and judge.accuses

    return see
