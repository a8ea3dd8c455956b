"""``conformance trace``: show what each rank of a case did."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from conformance.cli.exits import CONFORMING, USAGE, say
from conformance.cli.files import unwritable
from conformance.laws.checking import violations
from conformance.laws.run import Run
from conformance.report.text import write
from conformance.report.traces import chrome, render_trace
from conformance.trace import file
from conformance.trace.hindsight.shards import joined

DESCRIPTION = "Show what each rank of a case did, from what `conformance run --traces FOLDER` wrote."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of one case: FOLDER/<trainer>/<case>")
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE", help="write a Chrome trace instead, which Perfetto opens"
    )


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    try:
        spec, lines = file.read(options.folder)
        runs = Run.lives(spec, joined(lines))
        ranks = [
            [event for life in lives for event in life.events]
            for lives in zip(*(run.ranks for run in runs), strict=True)
        ]
        with console.capture() as printed:
            if options.chrome is None:
                render_trace(ranks, console)
            else:
                drawn = json.dumps(chrome(spec["case"], ranks, violations(*runs)), ensure_ascii=False)
    except file.TraceError as error:
        return say(str(error), USAGE)
    except Exception as error:
        # The files are anybody's, as those of `conformance report`.
        return say(f"{options.folder} cannot be shown: it is damaged ({type(error).__name__}: {error})", USAGE)
    if options.chrome is None:
        console.file.write(printed.get())
        return CONFORMING
    reason = unwritable(options.chrome)
    if reason is None:
        try:
            write(options.chrome, drawn)
        except OSError as error:
            reason = error.strerror
    if reason is not None:
        return say(f"cannot write {options.chrome}: {reason}", USAGE)
    console.print(f"{options.chrome}: open it in https://ui.perfetto.dev", soft_wrap=True)
    return CONFORMING
