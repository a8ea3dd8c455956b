"""``conformance laws``: list the laws that trainers are held to."""

from __future__ import annotations

import argparse

from rich.console import Console

from conformance.cli.exits import CONFORMING

SUMMARY = "list the laws that trainers are held to"
DESCRIPTION = "List the laws that trainers are held to, and those of scripts that are watched."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It takes none."""


def main(options: argparse.Namespace, command: str, console: Console) -> int:
    from conformance.laws.explain import listing

    console.print(listing())
    return CONFORMING
