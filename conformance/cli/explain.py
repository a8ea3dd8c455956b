"""``conformance explain``: print a law."""

from __future__ import annotations

import argparse

from rich.console import Console

from conformance.cli.exits import CONFORMING, USAGE, say

SUMMARY = "print a law: why it is, where it stands, and how to keep it"
DESCRIPTION = "Print a law: why it is, where it stands, and how to keep it. Of a chapter, list its laws."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("law", help="a law's id, as amp/unscale-before-clip, or a chapter's, as amp")


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.laws.explain import UnknownLaw, explained

    try:
        console.print(explained(options.law))
    except UnknownLaw as error:
        return say(str(error), USAGE)
    return CONFORMING
