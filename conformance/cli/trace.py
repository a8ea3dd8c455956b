"""``conformance trace``: show the steps of each rank of a case."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from conformance.cli.exits import CONFORMING, USAGE, say
from conformance.laws.subjects import Run
from conformance.report.traces import render_trace
from conformance.trace import file
from conformance.trace.hindsight.shards import joined

DESCRIPTION = "Show what each rank of a case did, from the traces of `conformance run --traces FOLDER`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of one case: FOLDER/<trainer>/<case>")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    try:
        spec, lines = file.read(options.folder)
        runs = Run.lives(spec, joined(lines))
        ranks = [
            [event for life in lives for event in life.events]
            for lives in zip(*(run.ranks for run in runs), strict=True)
        ]
        with console.capture() as printed:
            render_trace(ranks, console)
    except file.TraceError as error:
        return say(str(error), USAGE)
    except Exception as error:
        # Anyone may have written the files.
        return say(f"{options.folder} cannot be shown: it is damaged ({type(error).__name__}: {error})", USAGE)
    console.file.write(printed.get())
    return CONFORMING
