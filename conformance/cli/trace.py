"""``conformance trace``: show what each rank of a case did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from conformance.cli.exits import CONFORMING, USAGE, say
from conformance.cli.files import unwritable

SUMMARY = "show what each rank of a case did"
DESCRIPTION = "Show what each rank of a case did, from what `conformance run --traces FOLDER` wrote."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of one case: FOLDER/<trainer>/<case>")
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE", help="write a Chrome trace instead, which Perfetto opens"
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.laws.checking import violations
    from conformance.laws.run import Run
    from conformance.report.chrome import chrome
    from conformance.report.trace import render_trace
    from conformance.trace import file

    try:
        run = Run.read(*file.read(options.folder))
    except file.TraceError as error:
        return say(str(error), USAGE)
    ranks = [rank.events for rank in run.ranks]
    if options.chrome is None:
        render_trace(ranks, console)
        return CONFORMING
    reason = unwritable(options.chrome)
    if reason is not None:
        return say(f"cannot write {options.chrome}: {reason}", USAGE)
    drawn = json.dumps(chrome(run.plan.spec["case"], ranks, violations(run)), ensure_ascii=False)
    options.chrome.write_text(drawn, encoding="utf-8", errors="backslashreplace")
    console.print(f"{options.chrome}: open it in https://ui.perfetto.dev", soft_wrap=True)
    return CONFORMING
