"""``conformance explain``: explain a law."""

from __future__ import annotations

import argparse

from rich.console import Console

from conformance.cli.exits import CONFORMING, USAGE, say

SUMMARY = "explain a law: why it holds, its source, and how to keep it"
DESCRIPTION = "Explain a law: why it holds, its source, and how to keep it. For a chapter, list its laws."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("law", help="the id of a law, such as amp/unscale-before-clip, or of a chapter, such as amp")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.laws.explain import UnknownLaw, explained

    try:
        console.print(explained(options.law))
    except UnknownLaw as error:
        return say(str(error), USAGE)
    return CONFORMING
