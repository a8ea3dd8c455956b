"""Shared by the benchmarks: the case, timing in turns, the table at the end, and a row of the table of all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from platform import python_version
from time import perf_counter

from rich.console import Console
from rich.table import Table

from conformance.cases.case import Case

ROWS = "CONFORMANCE_BENCHMARKS"
"""The environment variable with the file to which `python -m benchmarks` has all ratios written."""

CASE = Case("ddp", world_size=2, accumulation=1, precision="fp16", workload="momentum")
TIME_LIMIT = 60.0


def seconds(work: Callable[[], object]) -> float:
    """The seconds that ``work`` takes."""
    began = perf_counter()
    work()
    return perf_counter() - began


def in_turns(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round; they take turns, so other load affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            times[name].append(seconds(work))
    return times


def stay_on_loopback() -> None:
    """For this process and its children; also one thread each, as torchrun sets."""
    interface = "lo0" if os.uname().sysname == "Darwin" else "lo"
    os.environ.update(GLOO_SOCKET_IFNAME=interface, OMP_NUM_THREADS="1")


def show(title: str, columns: Sequence[str], sections: Iterable[Iterable[Sequence[str]]], note: str) -> None:
    """Prints one table: the first column is text, all others numbers; a rule between sections."""
    console = Console(highlight=False)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{os.cpu_count()} cores, load average {load}, Python {python_version()}, torch {version('torch')}"
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for section in sections:
        for row in section:
            table.add_row(*row)
        table.add_section()
    console.print(f"\n[bold]{title}[/bold]", table, note, machine, sep="\n")


def note(what: str, peer: str, ratio: float, limit: str) -> None:
    """Adds a row to the table of `python -m benchmarks`: the ratio of ``what`` to its peer, and what is asked."""
    if file := os.environ.get(ROWS):
        with open(file, "a") as rows:
            print(json.dumps([what, peer, f"{ratio:.2f}", limit]), file=rows)
