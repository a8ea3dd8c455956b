"""Seconds of the commands that users wait for, here and in an older checkout, in turns.

    python benchmarks/commands.py [--old FOLDER] [--rounds 1]

Each checkout has a separate cache of answers, which is empty in its first run. Without an older checkout it compares
with what the command adds something to: a watched script with the bare one, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

from measuring import note, show

ROOT = Path(__file__).parents[1]
SCRIPT = "import torch; torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()"
RUNS = {
    "run ddp, the first time": ("run", "ddp"),
    "run ddp": ("run", "ddp"),
    "run my_trainer.py": ("run", "my_trainer.py"),
    "smoke my_trainer.py": ("smoke", "my_trainer.py"),
}
START_LIMIT = 0.3


class Taken(NamedTuple):
    """Seconds of wall time and of processor time, and the verdicts of the run."""

    wall: float
    processor: float
    verdicts: Counter[str]


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of commands, here and in an older checkout.")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="an older checkout")
    parser.add_argument("--rounds", type=int, default=1, help="(default: %(default)s)")
    options = parser.parse_args()
    checkouts = {"new": ROOT, **({"old": options.old.resolve()} if options.old else {})}
    with TemporaryDirectory() as folder:
        places = {name: Path(folder, name) for name in checkouts}
        for name, place in places.items():
            place.mkdir()
            taken(checkouts[name], place, "init", "--output", "my_trainer.py")
        times: dict[str, dict[str, list[Taken]]] = {what: {name: [] for name in checkouts} for what in RUNS}
        for number in range(options.rounds):
            for what, command in RUNS.items():
                if number == 0 or not what.endswith("first time"):
                    for name, checkout in checkouts.items():
                        times[what][name].append(taken(checkout, places[name], *command))
        rows = [row for what in RUNS for row in compared(what, times[what])]
        starts = [started(places["new"]) for _ in range(5 * options.rounds)]
    bare, watched = (median(column) for column in zip(*starts, strict=True))
    note("start of a watched script, seconds added", f"{START_LIMIT} s", (watched - bare) / START_LIMIT, "at most 1")
    show(
        "Commands, in turns",
        ("command", "wall s", "processor s", "cases", "processor s per case", "ratio of wall time to the old"),
        [rows],
        f"A script that imports torch starts in {bare:.2f} s, watched in {watched:.2f} s.",
    )


def compared(what: str, times: dict[str, list[Taken]]) -> Iterator[tuple[str, ...]]:
    """A row for each checkout. The number of cases may differ, so the ratio is also noted for one case."""
    walls = {name: median(one.wall for one in found) for name, found in times.items()}
    for name, found in times.items():
        processor, cases = median(one.processor for one in found), found[-1].verdicts.total()
        ratio = f"{walls['new'] / walls['old']:.2f}" if name == "new" and "old" in walls else ""
        each = f"{processor / cases:.3f}" if cases else ""
        yield f"{what} ({name})", f"{walls[name]:.1f}", f"{processor:.1f}", str(cases or ""), each, ratio
    if "old" in walls:
        note(f"wall time of {what}", "the older checkout", walls["new"] / walls["old"], "at most 0.5")
        new, old = (times[name][-1].verdicts.total() for name in ("new", "old"))
        if new and old:
            note(f"wall time of {what}, per case", "the older checkout", walls["new"] * old / walls["old"] / new, "")


def taken(checkout: Path, place: Path, *command: str) -> Taken:
    """Runs a command of a checkout in this folder. Raises CalledProcessError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "XDG_CACHE_HOME": str(place / "cache")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    words = [sys.executable, "-m", "conformance", *command]
    subprocess.run(words, cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(wall, processor, verdicts(place) if command[0] == "run" else Counter())


def verdicts(place: Path) -> Counter[str]:
    """The verdicts of the cases that ran."""
    lines = map(json.loads, (place / "conformance-results.jsonl").read_text().splitlines())
    found = Counter(line["verdict"] for line in lines if "verdict" in line)
    return Counter({name: count for name, count in found.items() if name not in ("UNSUPPORTED", "UNAVAILABLE")})


def started(place: Path) -> tuple[float, float]:
    """Seconds of a script that imports torch and takes a step: bare and watched."""
    (place / "script.py").write_text(SCRIPT)
    bare = [sys.executable, "script.py"]
    seconds = []
    for words in (bare, [sys.executable, "-m", "conformance", "watch", "--", *bare]):
        began = perf_counter()
        # A script without a loss is UNDECIDED.
        subprocess.run(words, cwd=place, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(perf_counter() - began)
    return seconds[0], seconds[1]


if __name__ == "__main__":
    main()
