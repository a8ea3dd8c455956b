"""Memory and open files over 500 cases through one ForkServer: nothing may grow with the number of cases.

    python benchmarks/memory.py [--cases 500] [--every 50]

It observes every process that outlives a case: the front (this one, which also judges each case), the zygote that
imported torch, and the server forked from it. RSS is the resident set size; forked processes share much of theirs. The
slope is that of the least-squares line. Caches and pools of the allocator fill up in the first rows, so a second slope
omits the first half. Linux only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

from measuring import CASE, TIME_LIMIT, show, stay_on_loopback

from conformance.runner.front.client import ForkServer
from conformance.verdict.judge import judge


@dataclass(frozen=True)
class Reading:
    """One process at one time: resident memory in kB, open file descriptors, child processes."""

    resident: int
    descriptors: int
    children: int

    @classmethod
    def of(cls, pid: int) -> Reading:
        status = Path(f"/proc/{pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        # One of them lists this process's own descriptors, if it is this process.
        listing = int(pid == os.getpid())
        descriptors = len(os.listdir(f"/proc/{pid}/fd")) - listing
        return cls(int(resident.split()[1]), descriptors, len(children(pid)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory and open files over many cases.")
    parser.add_argument("--cases", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=50, help="cases between readings (default: %(default)s)")
    options = parser.parse_args()
    stay_on_loopback()
    marks = range(options.every, options.cases + 1, options.every)
    with ForkServer("ddp", "ddp") as server:
        [zygote] = children(os.getpid())
        [importer] = children(zygote)
        [serving] = children(importer)
        readings = dict(observe(server, marks, {"front": os.getpid(), "zygote": zygote, "server": serving}))
    rows = [(str(mark), *map(_cell, found.values())) for mark, found in readings.items()]
    show(
        f"RSS in MB / open descriptors / children, over {options.cases} cases {CASE.id}",
        ("after cases", "front", "zygote", "server"),
        [rows, list(slopes(readings))],
        "Each case ran in two new ranks with a new rendezvous, and was judged.",
    )


def observe(server: ForkServer, marks: range, pids: dict[str, int]) -> Iterator[tuple[int, dict[str, Reading]]]:
    """Runs cases; yields readings of all processes after each number of cases in ``marks``."""
    for number in range(1, marks[-1] + 1):
        judgement = judge(CASE, server.run(CASE.spec(), TIME_LIMIT))
        if judgement.verdict != "PASS (exact)":
            raise AssertionError(f"case {number}: {judgement.verdict}: {judgement.headline}")
        if number in marks:
            yield number, {name: Reading.of(pid) for name, pid in pids.items()}


def slopes(readings: dict[int, dict[str, Reading]]) -> Iterator[tuple[str, ...]]:
    """Growth per case of each process."""
    numbers = list(readings)
    processes = list(next(iter(readings.values())))
    quantities: dict[str, Callable[[Reading], int]] = {
        "kB per case": lambda reading: reading.resident,
        "descriptors per case": lambda reading: reading.descriptors,
    }
    for what, quantity in quantities.items():
        for half, chosen in (("", numbers), (", second half", numbers[len(numbers) // 2 :])):
            lines = [
                linear_regression(chosen, [quantity(readings[number][process]) for number in chosen])
                for process in processes
            ]
            yield f"{what}{half}", *(f"{line.slope:+.3f}" for line in lines)


def children(pid: int) -> list[int]:
    """The process ids of a process's children."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _cell(reading: Reading) -> str:
    return f"{reading.resident / 1e3:.1f} / {reading.descriptors} / {reading.children}"


if __name__ == "__main__":
    main()
